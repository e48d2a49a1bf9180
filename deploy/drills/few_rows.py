"""Spark's configuration for a handful of rows: compiling, and starting tasks, would take most of the time.

The demonstration uses Spark's default, which compiles.
"""

from pathlib import Path
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


def for_few_rows(directory: Path) -> dict[str, str]:
    """Write the configuration to a directory, which may exist; returns the environment of a command that uses it."""
    directory.mkdir(exist_ok=True)
    path = directory / "few-rows.conf"
    path.write_text("".join(f"{name} {value}\n" for name, value in FOR_FEW_ROWS.items()))
    # SPARK_CONF_DIR would be on the classpath, and the archive of Spark's classes is of another one then
    return {"PYSPARK_SUBMIT_ARGS": f"--properties-file {path} pyspark-shell"}
