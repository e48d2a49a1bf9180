"""Land one cut: the topics' records of a manifest, as typed tables in the lake.

Invariant: landing is idempotent. A cut that has landed is verified and not landed again; one whose landing was killed
is landed again, with the same bytes. Each topic is read and parsed once, unless it holds undecodable records and has
one table only.

Files are written to a staging folder, moved to their names, then listed. A file's name depends on the manifest and on
the order of Spark's tasks only, so a repeated landing overwrites the files of a killed one with the same bytes. Every
file is on disk before the list that names it, and the list is written in one step: half of a cut never counts.
"""

import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark import source
from spark.decode import TABLE, parse, select_table
from spark.lake import VERSION, Lake, LakeError, Landed, LandedFile, LandedTable, measure
from spark.manifest import LANDED_TOPICS, Manifest, check_follows, encode
from spark.schemas import DAY, TABLES, UNDECODABLE, Table, tables_of
from spark.source import Brokers

_PART: Final = re.compile(r"part-(\d+)-.*\.parquet")


class Staging:
    """The folder in which one cut is written. Files of earlier tries, of this cut or of another, are removed."""

    def __init__(self, lake: Lake, manifest: Manifest) -> None:
        self._lake = lake
        self._manifest = manifest
        self._root = lake.root / ".staging" / manifest.cut_id
        shutil.rmtree(self._root.parent, ignore_errors=True)
        self._root.mkdir(parents=True)

    def directory(self, table: str, part: int) -> Path:
        """Return the folder for rows of a table, partitioned by day; it does not exist yet.

        `part` is the order among the jobs that write rows of this table.
        """
        return self._root / table / f"{part:04d}"

    def publish(self, rows: Mapping[str, int]) -> Landed:
        """Move the written files to their names, and list them; then the cut has landed. `rows` are counts by table.

        Raises LakeError if a table has rows and no file, or files and no rows.
        """
        lake, cut_id = self._lake, self._manifest.cut_id
        write_atomically(lake.cut_directory(self._manifest) / "manifest.json", encode(self._manifest))
        tables = {}
        for table in TABLES:
            moves = self._moves(table)
            if bool(moves) != bool(rows.get(table, 0)):
                raise LakeError(f"cut {cut_id} has {rows.get(table, 0)} rows of {table} in {len(moves)} files")
            if moves:
                files = tuple(self._move(source, target) for source, target in moves)
                tables[table] = LandedTable(rows[table], files)
        landed = Landed(VERSION, cut_id, self._manifest.digest, tables)
        self._remove_unlisted(landed)
        folders = {folder for file in landed.files for folder in Path(file.path).parents}
        for folder in sorted(folders):
            _sync(lake.root / folder)
        text = msgspec.json.format(msgspec.json.encode(landed), indent=2) + b"\n"
        write_atomically(lake.cut_directory(self._manifest) / "landed.json", text)
        shutil.rmtree(self._root)
        return landed

    def _moves(self, table: str) -> list[tuple[Path, Path]]:
        """Return each written file of a table and its target: by day, then by job, then by task."""
        written = defaultdict(list)
        for path in (self._root / table).glob("*/day=*/*.parquet"):
            found = _PART.fullmatch(path.name)
            if found is None:
                raise LakeError(f"{path} was not written by a task")
            written[path.parent.name].append((path.parent.parent.name, int(found[1]), path.name, path))
        return [
            (path, self._lake.table_directory(table) / day / f"{self._manifest.cut_id}-{number:05d}.parquet")
            for day, parts in sorted(written.items())
            for number, (*_, path) in enumerate(sorted(parts))
        ]

    def _move(self, source: Path, target: Path) -> LandedFile:
        size_bytes, sha256 = measure(source)
        _sync(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return LandedFile(str(target.relative_to(self._lake.root)), size_bytes, sha256)

    def _remove_unlisted(self, landed: Landed) -> None:
        """Remove files that killed landings left: of this cut and not in its list, and of cuts that never landed.

        The lake reads none of them, but a reader of all files of a table would have their rows twice.
        """
        listed = {file.path for file in landed.files}
        others = {cut.cut_id for cut in self._lake.cuts()} - {landed.cut_id}
        for path, cut_id in self._lake.data_files():
            if path not in listed and cut_id not in others:
                (self._lake.root / path).unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new one, and it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


TOPICS_AT_ONCE = 2  # one topic's last task, or its planning, leaves cores free that another one's tasks can use
_FEW: Final = 10  # a table with at most one in so many of its topic's rows is written from rows kept apart
_FILES: Final = {
    # Stated, or a site's defaults would decide about the bytes
    "compression": "snappy",
    "maxRecordsPerFile": "0",
    # Parquet shrinks row groups when those being written would not fit into memory together: these always do
    "parquet.block.size": str(32 * 1024 * 1024),
}

Progress = Callable[[str], None]


def land(spark: SparkSession, manifest: Manifest, brokers: Brokers, lake: Lake, progress: Progress) -> Landed:
    """Land a cut. Hold the lake's lock meanwhile: two landings at once would disturb each other.

    Args:
        spark: with the jars of Spark's Kafka source.
        manifest: it must follow the last cut that landed.
        progress: takes a line for people after each topic, from any thread.

    Raises:
        LakeError: the cut has landed and a file of it is gone or altered, or a cut before it is missing.
        ManifestError: the cut does not follow the last one that landed.
        PySparkException, Py4JError: the records cannot be read, or not all of them any more.
    """
    cuts = lake.cuts()
    if manifest in cuts:
        lake.verify([manifest])
        return lake.landed(manifest)
    if cuts:
        check_follows(manifest, cuts[-1])
    elif manifest.previous:
        raise LakeError(f"the cuts before {manifest.cut_id} are not in {lake.root}: land them first")
    staging = Staging(lake, manifest)
    rows = dict.fromkeys(TABLES, 0)
    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        one = partial(_land_topic, spark, manifest, brokers, staging, progress)
        for counted in pool.map(one, LANDED_TOPICS):
            for name, count in counted.items():
                rows[name] += count
    return staging.publish(rows)


def _land_topic(
    spark: SparkSession, manifest: Manifest, brokers: Brokers, staging: Staging, progress: Progress, topic: str
) -> dict[str, int]:
    """Write a topic's tables; return the rows of each that has some."""
    begun = time.monotonic()
    records = source.read(spark, brokers, topic, manifest.topics[topic])
    if records is None:
        return {}
    tables = tables_of(topic)
    write = partial(_write, staging, LANDED_TOPICS.index(topic))
    counted = (_land_one if len(tables) == 1 else _land_several)(parse(topic, records), tables, write)
    progress(f"landed {topic}: {sum(counted.values())} records in {time.monotonic() - begun:.1f} s")
    return counted


_Write = Callable[[DataFrame, Table], None]


def _land_one(parsed: DataFrame, tables: tuple[Table, ...], write: _Write) -> dict[str, int]:
    """Write a topic's only table. An undecodable record is a defect, and worth another reading."""
    seen, [table] = Observation(), tables
    write(_counted(parsed, tables, seen), table)
    counted = _some(seen)
    if UNDECODABLE in counted:
        write(_counted(parsed, tables, Observation()), TABLES[UNDECODABLE])
    return counted


def _land_several(parsed: DataFrame, tables: tuple[Table, ...], write: _Write) -> dict[str, int]:
    """Write all tables of a topic from parsed rows that are kept on the workers' disks meanwhile.

    They are kept as rows: a cache would turn them into columns first, and cost more than parsing them did.
    """
    seen = Observation()
    kept = _kept(_counted(parsed, tables, seen))
    counted = _some(seen)
    few = [name for name, count in counted.items() if count <= sum(counted.values()) // _FEW]
    if len(few) > 1:
        # Apart, or each of them would pass over all the others' rows
        rest = _kept(kept.where(F.col(TABLE).isin(few)))
    for name in counted:
        write(rest if len(few) > 1 and name in few else kept, TABLES[name])
    return counted


def _kept(rows: DataFrame) -> DataFrame:
    return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def _counted(parsed: DataFrame, tables: tuple[Table, ...], seen: Observation) -> DataFrame:
    """Return the same rows, counted by table as they pass."""
    names = (*(table.name for table in tables), UNDECODABLE)
    return parsed.observe(seen, *(F.count_if(F.col(TABLE) == name).alias(name) for name in names))


def _some(seen: Observation) -> dict[str, int]:
    return {name: count for name, count in seen.get.items() if count}


def _write(staging: Staging, part: int, parsed: DataFrame, table: Table) -> None:
    # In one order, whatever the scheduler did; by day first, or a task would hold a file of each day open
    rows = select_table(parsed, table).sortWithinPartitions(DAY.name, "partition", "offset")
    writer = rows.write.partitionBy(DAY.name).options(**_FILES)
    writer.parquet(f"file://{staging.directory(table.name, part)}")
