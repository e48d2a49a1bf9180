"""Land one cut: the topics' records of a manifest, as typed tables in the lake.

Invariant: landing is idempotent. A cut that has landed is verified and not landed again; one whose landing was killed
is continued, and gives the same bytes. Each topic is read, parsed and written once, in jobs of bounded size. A job is a
function of the manifest, so a job that has finished is never done again.

What a landing proves of each topic partition, before the cut counts as landed:
- Rows are within the pinned offsets, and no offset is in two rows.
- The rows on disk, as they are read back, are as many as were parsed, and as many as the files' footers say.
- In a topic of `spark.manifest.CONTIGUOUS`, each offset without a row is a record that is missing: `Count.missing`.

What it cannot prove: in the other topics, offsets without a record are markers of transactions, records of aborted ones
and records that were compacted away. Kafka's clients do not distinguish them from lost ones. The checks compare the
records of two topics with each other, and find a record that is missing from one of them.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import structs
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark import session
from spark.decode import TABLE, UNKNOWN, parse, typed_rows
from spark.lake import Count, Lake, LakeError, Landed, Span, Spans, Unknown
from spark.manifest import ADDED_TOPICS, CONTIGUOUS, LANDED_TOPICS, Manifest, Range, check_follows
from spark.metrics import Progress
from spark.schemas import DAY, TABLES, UNDECODABLE, tables_of
from spark.session import Brokers, shuffle_partitions
from spark.staging import Job, Staging

JOBS_AT_ONCE = 2  # one job's last task, or its planning, leaves cores free that another one's tasks can use
_JOBS_OF_TOPIC_MAX: Final = 10_000
_OFFSETS: Final = 1 << 53  # more than any partition has
_BLOCK_BITS: Final = 6  # 64 offsets are bits of one BIGINT: distinct ones are counted exactly, without sorting them
_DISTINCT: Final = (
    "offset",
    "timestamp",
    "origin_offset",
    "source_offset",
    "payment_id",
    "effect_id",
    "received_at_ms",
    "value",
)
"""Columns whose values are nearly all different."""
_FILES: Final = {
    # Stated, or a site's defaults would decide about the bytes
    "compression": "snappy",
    "maxRecordsPerFile": "0",
    # Parquet shrinks row groups when those being written would not fit into memory together: these always do
    "parquet.block.size": str(32 * 1024 * 1024),
    # Building a dictionary of these takes time, and saves little or no space
    **{f"parquet.enable.dictionary#{name}": "false" for name in _DISTINCT},
}


class Slice(NamedTuple):
    """One job of a landing: a part of a topic."""

    number: int  # orders the jobs of a cut
    topic: str
    offsets: dict[int, tuple[int, int]]  # by partition: the first and the one after the last


def slices(manifest: Manifest) -> Iterator[Slice]:
    """Yield the jobs of a cut: each topic in equal parts of at most `records_max` offsets, of all partitions. Pure."""
    # Topics that were added come last: a landing that a former version began keeps its jobs' numbers
    for index, topic in enumerate([topic for topic in LANDED_TOPICS if topic not in ADDED_TOPICS] + [*ADDED_TOPICS]):
        pinned = session.offsets_to_read(manifest.topics.get(topic, {}))
        width = sum(end - begin for begin, end in pinned.values())
        parts = min(-(-width // max(1, manifest.settings.records_max)), _JOBS_OF_TOPIC_MAX)
        for part in range(parts):
            bounds = {
                partition: (
                    begin + (end - begin) * part // parts,
                    begin + (end - begin) * (part + 1) // parts,
                )
                for partition, (begin, end) in pinned.items()
            }
            filled = {partition: (begin, end) for partition, (begin, end) in bounds.items() if begin < end}
            yield Slice(index * _JOBS_OF_TOPIC_MAX + part, topic, filled)


Uncovered = Callable[[str, int, int, int], int]
"""Returns how many offsets of a topic partition, from the third argument to before the fourth, no batch covers.

Markers and aborted records are in batches, and have no row. An offset in no batch held a record that is lost."""


def land(
    spark: SparkSession,
    manifest: Manifest,
    brokers: Brokers,
    lake: Lake,
    progress: Progress,
    uncovered: Uncovered | None = None,
) -> Landed:
    """Land a cut. Hold the lake's lock meanwhile: two landings at once would disturb each other.

    Args:
        spark: with the jars of Spark's Kafka source.
        manifest: it must follow the last cut that landed.
        progress: gets the seconds of each topic's jobs, added up, and of reading the files back.
        uncovered: looks up the log where offsets are missing; None leaves `Count.lost` open.

    Raises:
        LakeError: the cut has landed and a file of it is gone or altered, a cut before it is missing, or the rows on
            disk are not those that were read.
        ManifestError: the cut does not follow the last one that landed.
        PySparkException, Py4JError: the records cannot be read, or not all of them any more.
    """
    cuts = lake.cuts()
    if manifest in cuts:
        lake.verify([manifest])
        return lake.landed(manifest)
    if cuts:
        check_follows(manifest, cuts[-1])
    elif manifest.previous or manifest.sequence != 1:
        raise LakeError(f"the cuts before {manifest.cut_id} are not in {lake.root}: land them first")
    staging = Staging(lake, manifest)
    parts = list(slices(manifest))
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        jobs = list(pool.map(partial(_land_slice, spark, brokers, staging, progress), parts))
    rows = dict.fromkeys(TABLES, 0)
    for job in jobs:
        for name, count in job.rows.items():
            rows[name] += count
    groups = sum(rows.values()) >> _BLOCK_BITS
    spark.conf.set(
        "spark.sql.shuffle.partitions", str(shuffle_partitions(groups, spark.sparkContext.defaultParallelism))
    )
    with progress.stage("read_back"):
        files = read_back(spark, staging.files())
    faults = [*differences(rows, files), *misplaced(manifest, files)]
    if faults:
        staging.discard()
        raise LakeError(f"cut {manifest.cut_id} has not landed: {'; '.join(faults)}")
    spans = {path: file.spans for path, file in files.items()}
    strange = unknown_of(zip((part.topic for part in parts), (job.unknown for job in jobs), strict=True))
    counts = counts_of(manifest, spans.values())
    return staging.publish(
        rows, spans, counts if uncovered is None else with_lost(manifest, counts, uncovered), strange
    )


def _land_slice(spark: SparkSession, brokers: Brokers, staging: Staging, progress: Progress, job: Slice) -> Job:
    """Write a job's tables, unless an earlier try has."""
    begun_s = time.monotonic()
    done = staging.job(job.number)
    if done is not None:
        progress.say(f"kept {job.topic}: {sum(done.rows.values())} records had been landed")
        progress.add(f"land:{job.topic}", time.monotonic() - begun_s)
        return done
    seen = Observation()
    names = (*(table.name for table in tables_of(job.topic)), UNDECODABLE)
    parsed = parse(job.topic, session.read_topic(spark, brokers, job.topic, job.offsets))
    # One number: an observation cannot return a struct
    place = F.col("partition").cast("bigint") * _OFFSETS + F.col("offset")
    counted = parsed.observe(
        seen,
        *(F.count_if(F.col(TABLE) == name).alias(name) for name in names),
        F.count_if(UNKNOWN).alias("_unknown"),
        F.min(F.when(F.col(UNKNOWN), place)).alias("_first_unknown"),
    )
    # In one order, whatever the scheduler did; by table and day first, or a task would hold a file of each open
    rows = typed_rows(job.topic, counted).sortWithinPartitions(TABLE, DAY.name, "partition", "offset")
    writer = rows.write.partitionBy(TABLE, DAY.name).options(**_FILES)
    writer.parquet(f"file://{staging.job_directory(job.number)}")
    found = seen.get
    strange = found["_unknown"]
    unknown = Unknown(strange, *divmod(found["_first_unknown"], _OFFSETS)) if strange else None
    done = staging.finish(job.number, {name: found[name] for name in names if found[name]}, unknown)
    taken_s = time.monotonic() - begun_s
    progress.say(f"landed {job.topic}: {sum(done.rows.values())} records in {taken_s:.1f} s")
    progress.add(f"land:{job.topic}", taken_s)
    return done


class FileRows(NamedTuple):
    """A written file as it is on disk."""

    table: str
    footer: int  # rows by its footer
    doubled: int  # rows whose offset has a row before, in this file or another
    spans: Spans  # rows and offsets, by topic and partition


def read_back(spark: SparkSession, paths: Iterable[Path]) -> dict[Path, FileRows]:
    """Read the coordinates in written files, and their footers, in one pass over three narrow columns."""
    written = list(paths)
    if not written:
        return {}
    places = (
        spark.read.schema("topic string, partition int, offset bigint")
        .parquet(*(f"file://{path}" for path in written))
        .select("*", F.col("_metadata.file_path").alias("file"), F.shiftright("offset", _BLOCK_BITS).alias("block"))
    )
    bit = F.expr(f"shiftleft(1L, cast(offset & {(1 << _BLOCK_BITS) - 1} as int))")
    of_file = places.groupBy("topic", "partition", "block", "file").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.bit_or(bit).alias("bits"),
    )
    of_block = of_file.groupBy("topic", "partition", "block").agg(
        (F.sum("rows") - F.bit_count(F.bit_or("bits"))).alias("doubled"),
        F.sort_array(F.collect_list(F.struct("file", "rows", "first", "last"))).alias("files"),
    )
    each = of_block.select("topic", "partition", "doubled", F.posexplode("files").alias("nth", "at"))
    found = each.groupBy("at.file", "topic", "partition").agg(
        F.sum("at.rows").alias("rows"),
        F.min("at.first").alias("first"),
        F.max("at.last").alias("last"),
        F.sum(F.when(F.col("nth") == 0, F.col("doubled")).otherwise(0)).alias("doubled"),
    )
    return _by_file(written, found.collect(), partial(footer_rows, spark))


def _by_file(paths: list[Path], rows: Iterable[Any], footer: Callable[[Path], int]) -> dict[Path, FileRows]:
    # Spark writes paths as URLs; a job, table, day and task are written alike in both
    names = {path.parts[-4:]: path for path in paths}
    by_path = defaultdict(list)
    for row in rows:
        by_path[names[Path(row["file"]).parts[-4:]]].append(row)
    found = {}
    for path in paths:
        spans: Spans = {}
        for row in sorted(by_path[path], key=lambda row: (row["topic"], row["partition"])):
            spans.setdefault(row["topic"], {})[row["partition"]] = Span(row["rows"], row["first"], row["last"])
        table = path.parents[1].name.removeprefix("table=")
        found[path] = FileRows(table, footer(path), sum(row["doubled"] for row in by_path[path]), spans)
    return found


def footer_rows(spark: SparkSession, path: Path) -> int:
    """Return the number of rows that a Parquet file's footer says it has."""
    with parquet_reader(spark, path) as reader:
        return int(reader.getRecordCount())


@contextmanager
def parquet_reader(spark: SparkSession, path: Path) -> Iterator[Any]:
    """Open a Parquet file with the JVM's reader: Python has none of footers."""
    context: Any = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop  # noqa: SLF001 # of the JVM
    parquet = context._jvm.org.apache.parquet.hadoop  # noqa: SLF001 # likewise
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001 # likewise
    reader = parquet.ParquetFileReader.open(
        parquet.util.HadoopInputFile.fromPath(hadoop.fs.Path(f"file://{path}"), configuration)
    )
    try:
        yield reader
    finally:
        reader.close()


def differences(rows: Mapping[str, int], files: Mapping[Path, FileRows]) -> list[str]:
    """Compare the rows that were parsed, by table, with those on disk and with the footers; return the faults. Pure."""
    faults = []
    on_disk = dict.fromkeys(rows, 0)
    for path, file in files.items():
        read = sum(span.rows for of_topic in file.spans.values() for span in of_topic.values())
        on_disk[file.table] = on_disk.get(file.table, 0) + read
        if read != file.footer:
            faults.append(f"{path.name} of {file.table} has {read} rows, and {file.footer} by its footer")
        if file.doubled:
            faults.append(f"{file.doubled} rows of {path.name} of {file.table} have an offset that was landed before")
    return faults + [
        f"{rows.get(table, 0)} rows of {table} were parsed, and {count} are on disk"
        for table, count in on_disk.items()
        if count != rows.get(table, 0)
    ]


def misplaced(manifest: Manifest, files: Mapping[Path, FileRows]) -> list[str]:
    """Return a fault for each file with rows that are not within the pinned offsets. Pure."""
    faults = []
    for path, file in files.items():
        for topic, of_topic in file.spans.items():
            for partition, span in of_topic.items():
                pinned = manifest.topics.get(topic, {}).get(partition, Range(0, 0, 0))
                if not pinned.first <= span.first <= span.last < pinned.end:
                    faults.append(
                        f"{path.name} of {file.table} has {topic}:{partition} from {span.first} to {span.last}, and "
                        f"the cut from {pinned.first} to below {pinned.end}"
                    )
    return faults


def unknown_of(jobs: Iterable[tuple[str, Unknown | None]]) -> dict[str, Unknown]:
    """Return the records with unknown fields by topic, of jobs by topic. Pure."""
    found: dict[str, Unknown] = {}
    for topic, unknown in jobs:
        if unknown is not None:
            before = found.get(topic, unknown)
            records = unknown.records + (before.records if topic in found else 0)
            partition, offset = min((one.partition, one.offset) for one in (before, unknown))
            found[topic] = Unknown(records, partition, offset)
    return found


def with_lost(
    manifest: Manifest, counts: Mapping[str, Mapping[int, Count]], uncovered: Uncovered
) -> dict[str, dict[int, Count]]:
    """Return the counts with `lost`, where offsets are missing."""
    return {
        topic: {
            partition: structs.replace(count, lost=uncovered(topic, partition, *_range(manifest, topic, partition)))
            if count.missing
            else count
            for partition, count in of_topic.items()
        }
        for topic, of_topic in counts.items()
    }


def _range(manifest: Manifest, topic: str, partition: int) -> tuple[int, int]:
    pinned = manifest.topics[topic][partition]
    return pinned.first, pinned.end


def counts_of(manifest: Manifest, spans: Iterable[Spans]) -> dict[str, dict[int, Count]]:
    """Return what a cut has of each topic partition in which it has offsets. Pure."""
    rows: defaultdict[tuple[str, int], int] = defaultdict(int)
    for of_file in spans:
        for topic, of_topic in of_file.items():
            for partition, span in of_topic.items():
                rows[topic, partition] += span.rows
    found: dict[str, dict[int, Count]] = {}
    for topic, ranges in manifest.topics.items():
        for partition, pinned in sorted(ranges.items()):
            if pinned.start < pinned.end:
                offsets, landed = max(0, pinned.end - pinned.first), rows[topic, partition]
                missing = offsets - landed if topic in CONTIGUOUS else 0
                count = Count(offsets, landed, pinned.expired, missing)
                found.setdefault(topic, {})[partition] = count
    return found
