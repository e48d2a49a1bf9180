"""Spark's configuration for a handful of rows: compiling, and starting tasks, would take most of the time.

The demonstration and the commands of the README run with Spark's own, which compiles.
"""

from typing import Final

_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""The quick compiler only, with as much room for its code as both have: less, and it compiles what it threw away."""

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
