"""One Spark session for all tests of the pipeline: its start takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from deploy.local.jars import spark_jars
from spark.session import session

# With a handful of rows, compiling a plan takes most of its time. Runs at the demo's size compile theirs.
_FOR_FEW_ROWS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session over two local threads."""
    made = session(
        master="local[2]",
        jars=spark_jars(),
        partitions=1,
        memory="2g",
        directory=tmp_path_factory.mktemp("spark"),
        more={**_FOR_FEW_ROWS, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))},
    )
    yield made
    made.stop()
