"""One Spark session for all tests of the pipeline: its start takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from deploy.drills.few_rows import FOR_FEW_ROWS
from deploy.local.jars import spark_archive_options, spark_jars
from spark.session import session
from tests.tiers import without_full

_FOR_MANY_TESTS = {"spark.driver.defaultJavaOptions": "-XX:ReservedCodeCacheSize=240m"}
"""With the better compiler: what it takes at first comes back after a few hundred seconds of work."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """A session over two local threads."""
    made = session(
        master="local[2]",
        jars=spark_jars(),
        partitions=1,
        memory="2g",
        java_options=spark_archive_options(),
        directory=tmp_path_factory.mktemp("spark"),
        more={
            **FOR_FEW_ROWS,
            **({} if without_full(pytestconfig) else _FOR_MANY_TESTS),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            # Spark keeps the plans of 1,000 by default; a test looks at its own
            "spark.sql.ui.retainedExecutions": "100",
        },
    )
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _nothing_cached(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run clears what its checks have cached; a check that a test calls does not, and each query looks through it."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()
