"""Spark's configuration for a handful of rows: compiling, and starting tasks, would take most of the time.

The demonstration and the commands of the README use Spark's default, which compiles.
"""

from typing import Final

_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""The quick compiler only, with the code cache of both: in a smaller one it compiles discarded code again."""

FOR_FEW_ROWS: Final = {
    "spark.driver.defaultJavaOptions": _JVM,
    "spark.executor.defaultJavaOptions": _JVM,
    "spark.default.parallelism": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
