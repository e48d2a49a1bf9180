"""Make the archives of the classes of a broker and of Spark's driver: start one of each, and stop it.

Run `python -m deploy.local.archives`; progress goes to stderr. Invariant: an archive is put where it belongs in one
step when it is whole.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from deploy.local import jars
from deploy.local.kafka.cluster import KafkaNotReadyError, LocalKafka
from deploy.local.prerequisites import PrerequisiteError, require_java
from deploy.local.process import ProcessDeadlineError
from spark.session import session

_STOP_DEADLINE_S = 300.0


class ArchiveError(RuntimeError):
    """A JVM has not written its archive."""


_FAILURES = (PrerequisiteError, jars.JarError, KafkaNotReadyError, ProcessDeadlineError, ArchiveError, OSError)


def make(archive: Path, write: Callable[[Path, Path], None]) -> Path:
    """Return the archive, made if it is not there.

    Args:
        write: runs a JVM that writes an archive to a path; its other argument is a folder for what it needs besides.
    """
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
            new = Path(directory) / archive.name
            write(new, Path(directory) / "work")
            if not new.exists():
                raise ArchiveError(f"no archive was written to {new}")
            new.replace(archive)
    return archive


def of_brokers() -> Path:
    """Return the archive of the brokers' classes, made if it is not there."""
    return make(jars.archive_path(require_java(), jars.classpath()), _run_broker)


def of_spark() -> Path:
    """Return the archive of the classes of Spark's driver, made if it is not there."""
    require_java()
    archive = jars.spark_archive_path()
    if archive is None:
        raise ArchiveError("JAVA_HOME has no java")
    return make(archive, _run_spark)


def _run_broker(archive: Path, directory: Path) -> None:
    kafka = LocalKafka(directory, brokers=1, heap_mb=256, archive_at_exit=archive)
    kafka.start()
    try:
        kafka.wait_ready()
        [broker] = kafka.processes
        broker.request_stop()
        broker.wait(_STOP_DEADLINE_S)
    finally:
        kafka.kill()


def _run_spark(archive: Path, directory: Path) -> None:
    """Run a driver, and wait until its JVM has ended: stopping the session leaves it running."""
    log = directory / "spark.log"
    options = jars.archive_options(archive, make=True)
    try:
        spark = session(partitions=1, memory="1g", directory=directory, log=log, java_options=options)
        _use(spark, str(directory / "rows"))
        spark.stop()
    except (PySparkException, Py4JError) as error:
        raise ArchiveError(str(error)) from error
    gateway: Any = SparkContext._gateway  # noqa: SLF001 # pyspark ends it with this process only
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        raise ArchiveError(f"the driver did not end within {_STOP_DEADLINE_S:.0f} s") from None


def _use(spark: SparkSession, path: str) -> None:
    """Do some of what a reconciliation does, so that its classes are loaded."""
    rows = spark.createDataFrame(
        [(number, number % 3, str(number)) for number in range(20)], "id long, of long, text string"
    )
    last = rows.groupBy("of").agg(
        F.max_by(F.struct("id", "text"), "id").alias("last"), F.collect_list("id").alias("ids")
    )
    place = F.row_number().over(Window.partitionBy("of").orderBy("id"))
    wide = rows.join(last, "of", "left").withColumn("place", place).persist()
    wide.write.partitionBy("of").parquet(f"{path}/parquet")
    wide.write.json(f"{path}/json")
    read = spark.read.parquet(f"{path}/parquet").where(F.col("id") > 3)
    read.select("of", F.explode("ids").alias("id")).join(rows, "id", "left_anti").union(
        rows.select("of", "id")
    ).collect()


def main() -> int:
    """Make the archives, and return 0 without them as well: what would map them starts more slowly."""
    print(
        "archives: the classes of brokers and of Spark, so that they start in half of the time (40 s, once)",
        file=sys.stderr,
    )
    with ThreadPoolExecutor() as pool:
        for made in [pool.submit(of_brokers), pool.submit(of_spark)]:
            try:
                path = made.result()
            except _FAILURES as error:
                print(f"archives: one is missing, so what it is of starts more slowly: {error}", file=sys.stderr)
            else:
                print(f"archives: {path.name}, {path.stat().st_size // 1_000_000} MB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
