"""Connections: Spark's session, local or of any master, and Kafka's records as it reads them.

Invariant: results do not depend on what a machine or a site configures differently (time zone, ANSI mode). One manifest
gives the same rows in the same input partitions, on any master and whatever was written since. A range that begins
below the log's beginning, or ends above its end, fails the read. Within a range, Spark's source passes over offsets
without a record: `spark.land` counts the rows and compares them with the offsets.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaPackage  # type: ignore[import-untyped] # it has no types
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from spark.manifest import Range

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


# What pyspark names again for each expression
_NAMED: Final = (
    "PythonUtils",
    "functions",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.classic.SparkSession$",
    "py4j",
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
        # What follows from conditions multiplies with each name that a column gets: in a plan of many steps it has
        # filled a driver's memory. It would add filters against nulls, and the checks write those that they need
        "spark.sql.constraintPropagation.enabled": "false",
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
    for name in _NAMED:
        _remember(spark.sparkContext._jvm, name)  # noqa: SLF001 # where pyspark looks for it
    return spark


def _remember(jvm: Any, name: str) -> None:
    found = getattr(jvm, name)
    if not isinstance(found, _Remembered):
        setattr(jvm, name, _Remembered(found))


class _Remembered:
    """A class or a package of the JVM whose names are looked up once.

    py4j asks the JVM for each name each time, and the JVM looks for a class in every jar. A run names some thousands,
    however few its records are.
    """

    def __init__(self, found: JavaClass | JavaPackage) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        kept = _Remembered(found) if isinstance(found, JavaClass | JavaPackage) else found
        setattr(self, name, kept)
        return kept

    def __call__(self, *arguments: object) -> Any:
        return self._found(*arguments)


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


RECORDS_PER_TASK = 1_000_000  # offsets of one task at most: fixed, so that the split does not depend on the machine
RECORDS_AT_ONCE = 100_000  # up to so many offsets of one topic are worth one task only, and one file per table and day
POLL_TIMEOUT_MS = 30_000  # all offsets exist; only a broker's loss makes it wait, and is over in 10 s
_FETCH_BYTES = 8 * 1024 * 1024
_FETCHING: Final = {
    # For each poll, Spark's source asks twice for offsets and drops what was fetched beyond it: few large polls
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
    "kafka.fetch.max.bytes": str(4 * _FETCH_BYTES),
    # Those requests wait behind the fetch that the client sends ahead. It need not wait for more: all ends are stable
    "kafka.fetch.max.wait.ms": "1",
}


@dataclass(frozen=True, slots=True)
class TlsBrokers:
    """Brokers that identify their clients by certificates. The PEM files are read on driver and workers alike."""

    bootstrap_servers: str
    ca_file: str  # certificates that the brokers are trusted by
    identity_file: str  # private key and certificate chain


Brokers = str | TlsBrokers  # a str: brokers, comma separated

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def offsets_to_read(ranges: Mapping[int, Range]) -> dict[int, tuple[int, int]]:
    """Return the offsets to read, by partition: the first and the one after the last; none for an empty range.

    Records that expired before the cut was taken are below `beginning` and cannot be read.
    """
    found = {partition: (pinned.first, pinned.end) for partition, pinned in ranges.items()}
    return {partition: (begin, end) for partition, (begin, end) in sorted(found.items()) if begin < end}


def connection(brokers: Brokers) -> dict[str, str]:
    """Return the configuration of Spark's Kafka client. Pure. PEM stores: KIP-651."""
    if isinstance(brokers, str):
        return {"kafka.bootstrap.servers": brokers}
    return {
        "kafka.bootstrap.servers": brokers.bootstrap_servers,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": brokers.ca_file,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": brokers.identity_file,
    }


def read_topic(spark: SparkSession, brokers: Brokers, topic: str, pinned: Mapping[int, tuple[int, int]]) -> DataFrame:
    """Read one topic's committed records between offsets, as `offsets_to_read` returns them, lazily, as COLUMNS.

    The session needs the jars of Spark's Kafka source.
    """
    reader = spark.read.format("kafka").options(
        **{
            **connection(brokers),
            # Spark's default shows records of aborted and of open transactions (KIP-98)
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: list(pinned)}),
            "startingOffsets": json.dumps({topic: {str(number): begin for number, (begin, _) in pinned.items()}}),
            "endingOffsets": json.dumps({topic: {str(number): end for number, (_, end) in pinned.items()}}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
            "maxRecordsPerPartition": str(RECORDS_PER_TASK),
            **_FETCHING,
        }
    )
    frame = reader.load().select(*COLUMNS)
    width = sum(end - begin for begin, end in pinned.values())
    return frame.coalesce(1) if width <= RECORDS_AT_ONCE else frame
