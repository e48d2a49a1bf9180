"""The Spark session: local threads by default, any master by one setting.

Invariant: results do not depend on what a machine or a site configures differently (time zone, ANSI mode).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
_PARTITIONS_MIN = 2
_ROWS_PER_PARTITION = 250_000  # some 50 MB of narrow rows: sorted in memory, and worth a task
_JVM = (
    # Nothing of this changes a figure: another JVM may leave out what it does not know
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+DisplayVMOutputToStderr",
    # A job, not a server: long pauses cost nothing, and the collectors that avoid them take cores from the tasks.
    # Nearly all that it makes is garbage at once, so half of the heap is for what is young
    "-XX:+UseParallelGC",
    "-XX:NewRatio=1",
    "-XX:+UseTransparentHugePages",
    # Each plan runs as classes of its own, most of them for seconds: compiled well at three times the usual count,
    # the compiler leaves more of the cores to the tasks
    "-XX:Tier4InvocationThreshold=15000",
    "-XX:Tier4MinInvocationThreshold=3000",
    "-XX:Tier4CompileThreshold=40000",
    "-XX:Tier4BackEdgeThreshold=120000",
)


def shuffle_partitions(rows: int, cores: int) -> int:
    """Return the number of partitions for a shuffle of so many rows, a multiple of the cores."""
    wanted = max(_PARTITIONS_MIN, -(-rows // _ROWS_PER_PARTITION))
    return -(-wanted // cores) * cores


def session(
    *,
    master: str | None = LOCAL,
    jars: Sequence[Path] = (),
    partitions: int = _PARTITIONS_MIN,
    memory: str = "4g",
    driver_host: str = LOOPBACK,
    directory: Path | None = None,
    log: Path | None = None,
    java_options: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Open a session for the pipeline; stop it when done.

    Args:
        master: a Spark master's URL; None where spark-submit has named it, with driver, memory and jars.
        jars: of Spark's Kafka source, where it is not on the class path already.
        partitions: of each shuffle, see `shuffle_partitions`.
        memory: the driver's heap, as Spark writes it; under a local master the driver does all the work.
        driver_host: address of this machine, on which workers reach the driver.
        directory: for spilled and shuffled data; None is Spark's default.
        log: a file for Spark's own messages, replaced; None leaves them on stderr.
        java_options: further options of the driver's JVM, where this starts it.
        more: further configuration, Spark's names.
    """
    settings = {
        "spark.app.name": "once",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        # Files are read by name, not by folder: a job that lists them would take longer than asking for each
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # With it, each expression that is built asks the JVM twice for its call site; a plan here has hundreds
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # What is kept in memory may have as few partitions as its size is worth, like any other result
        "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({} if master is None else _driver(master, jars, memory, driver_host, java_options)),
        **({"spark.local.dir": str(directory)} if directory else {}),
        **(more or {}),
    }
    if log is not None and SparkContext._gateway is None:  # noqa: SLF001 # nothing else shows whether a JVM runs
        _launch(settings, log)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _driver(master: str, jars: Sequence[Path], memory: str, host: str, java_options: Sequence[str]) -> dict[str, str]:
    return {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join((*_JVM, *java_options)),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        **({"spark.jars": ",".join(str(jar) for jar in jars)} if jars else {}),
    }


def _launch(settings: Mapping[str, str], log: Path) -> None:
    """Start the driver's JVM with its stderr in a file. It warns there before any logging can be configured."""
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": file})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)
