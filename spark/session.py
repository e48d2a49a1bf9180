"""The Spark session: local threads by default, any master by one setting.

What holds: figures depend on nothing that a machine or a site configures differently (time zone, ANSI mode).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

LOCAL = "local[*]"
_PARTITIONS_MIN = 2
_ROWS_PER_PARTITION = (
    250_000  # some 50 MB of narrow rows: small enough to sort in memory, large enough to be worth a task
)


def shuffle_partitions(rows: int, cores: int) -> int:
    """How many partitions a shuffle of so many rows is worth, a multiple of the cores; Spark's own default is 200."""
    wanted = max(_PARTITIONS_MIN, -(-rows // _ROWS_PER_PARTITION))
    return -(-wanted // cores) * cores


def session(
    *,
    master: str = LOCAL,
    jars: Sequence[Path] = (),
    partitions: int = _PARTITIONS_MIN,
    memory: str = "4g",
    directory: Path | None = None,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for the pipeline; stop it when done.

    Args:
        master: a Spark master's URL.
        jars: of Spark's Kafka source, where it is not on the class path already.
        partitions: of each shuffle, see `shuffle_partitions`.
        memory: the driver's heap, which does all the work under a local master, as Spark writes it.
        directory: for spilled and shuffled data; None is Spark's default.
        more: further configuration, Spark's names.
    """
    builder = SparkSession.builder.appName("once").master(master)
    settings = {
        "spark.driver.memory": memory,
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(str(jar) for jar in jars),
        **({"spark.local.dir": str(directory)} if directory else {}),
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} if "local" in master else {}),
        **(more or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
