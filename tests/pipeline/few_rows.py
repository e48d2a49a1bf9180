"""Spark's configuration for a handful of rows: compiling plans and starting tasks would take most of the time.

The demonstration and the commands of the README run with Spark's own, which compiles.
"""

from typing import Final

FOR_FEW_ROWS: Final = {
    "spark.default.parallelism": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
