"""The landed tables on disk: which files belong to which cut, whether they are unaltered, and reading them.

A lake is a folder of a file system that driver and workers share:

    cuts/<cut_id>/manifest.json    the pinned cut
    cuts/<cut_id>/landed.json      its files, each with its size and digest
    tables/<table>/day=YYYY-MM-DD/<cut_id>-NNNNN.parquet
    runs/<cut_id>/                 the run over it, see `spark.runs`

Invariant: `landed.json` is written last, and only files that one lists are read: a killed landing has no effect. Cuts
are a chain without a gap.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import StructType

from spark.manifest import Manifest, ManifestError, check_follows, decode
from spark.schemas import TABLES

VERSION: Final = 2
"""Lists of version 1 have no spans and no counts."""
_DATA_FILE: Final = re.compile(r"/(\d{6,}-[0-9a-f]{8})-\d{5}\.parquet$")


class LakeError(RuntimeError):
    """The lake is not as its cuts say; the message names what is wrong."""


class LakeLockedError(RuntimeError):
    """Another run is at work on the lake."""


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rows of one topic partition in one file."""

    rows: int
    first: int  # the smallest offset
    last: int  # the largest


Spans = dict[str, dict[int, Span]]
"""By topic and partition."""


class LandedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of a cut."""

    path: str  # relative to the lake
    size_bytes: int
    sha256: str  # hex
    spans: Spans = {}  # of its rows; empty where it is not known


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offsets of one topic partition in a cut, and the rows that they gave."""

    offsets: int  # that could be read
    rows: int  # in all tables
    expired: int  # offsets that were gone before the cut was taken
    missing: int  # offsets without a row, in a topic whose offsets all hold a record; elsewhere 0
    lost: int | None = None  # of these, offsets in no batch of the log; None where the log was not looked up


class LandedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that a cut added to one table, and their files in order."""

    rows: int
    files: tuple[LandedFile, ...]


class Unknown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of a topic with a field that no event of the topic has. The tables do not have the field."""

    records: int
    partition: int  # of the first by partition and offset
    offset: int


class Landed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of one cut."""

    version: int
    cut_id: str
    manifest: str  # digest of the cut's manifest
    tables: dict[str, LandedTable]  # by name, those to which the cut added rows
    counts: dict[str, dict[int, Count]] = {}  # by topic and partition, those in which the cut has offsets
    unknown: dict[str, Unknown] = {}  # by topic, those with such records

    @property
    def rows(self) -> dict[str, int]:
        """Rows by table, 0 where the cut has none."""
        return {name: self.tables[name].rows if name in self.tables else 0 for name in TABLES}

    @property
    def counted(self) -> list[tuple[str, int, Count]]:
        """Topic, partition and count of each partition in which the cut has offsets."""
        return [(topic, number, count) for topic, of_topic in self.counts.items() for number, count in of_topic.items()]

    @property
    def files(self) -> list[LandedFile]:
        return [file for table in self.tables.values() for file in table.files]


Bounds = Mapping[int, tuple[int, int]]
"""Offsets by partition: the first, and the one after the last. A partition that is not named has no rows."""

Document = TypeVar("Document", Manifest, Landed)


class Lake:
    """The lake in a folder, which need not exist yet. Its documents are decoded once, unless they change."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[Path, tuple[tuple[int, int], Any]] = {}

    def cuts(self) -> list[Manifest]:
        """Return the landed cuts, from the first on; raise LakeError for an altered manifest or a missing cut."""
        try:
            folders = sorted(path.parent for path in self.root.glob("cuts/*/landed.json"))
            found = sorted((self._manifest(folder) for folder in folders), key=lambda cut: cut.sequence)
            for before, after in pairwise(found):
                check_follows(after, before)
        except ManifestError as error:
            raise LakeError(f"the cuts of {self.root} are no chain: {error}") from error
        if found and found[0].sequence != 1:
            raise LakeError(f"the cut before {found[0].cut_id} is missing from {self.root}")
        return found

    def pending(self) -> Manifest | None:
        """Return the cut that was taken last and has not landed, if it still follows the last that has.

        Raises LakeError for an altered manifest.
        """
        cuts = self.cuts()
        folders = [path.parent for path in self.root.glob("cuts/*/manifest.json")]
        try:
            taken = [self._manifest(folder) for folder in folders if not (folder / "landed.json").exists()]
        except ManifestError as error:
            raise LakeError(f"a cut of {self.root} that has not landed cannot be read: {error}") from error
        follows = (len(cuts) + 1, cuts[-1].digest if cuts else "")
        waiting = [cut for cut in taken if (cut.sequence, cut.previous) == follows]
        return max(waiting, key=lambda cut: cut.taken_at_ms, default=None)

    def drop(self, manifest: Manifest) -> None:
        """Remove the manifest of a cut that has not landed."""
        if (self.cut_directory(manifest) / "landed.json").exists():
            raise LakeError(f"cut {manifest.cut_id} has landed")
        shutil.rmtree(self.cut_directory(manifest))

    def landed(self, manifest: Manifest) -> Landed:
        """Return the files of a cut; raise LakeError if it has not landed, or its list is not the cut's."""
        path = self.cut_directory(manifest) / "landed.json"
        try:
            landed = self._decoded(path, _list)
        except FileNotFoundError as error:
            raise LakeError(f"cut {manifest.cut_id} has not landed in {self.root}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} was altered: {error}") from error
        named = (landed.cut_id, landed.manifest) == (manifest.cut_id, manifest.digest)
        if not named or not 1 <= landed.version <= VERSION:
            raise LakeError(f"{path} is not the list of cut {manifest.cut_id}")
        return landed

    def verify(self, cuts: Sequence[Manifest], *, strays: bool = True) -> None:
        """Compare every file of the cuts with its digest.

        Args:
            strays: also list the whole lake, to find files of these cuts that no list names.

        Raises LakeError naming each file that is gone, altered, or there without being listed.
        """
        faults = self.faults(cuts, strays=strays)
        if faults:
            raise LakeError("; ".join(faults))

    def faults(self, cuts: Sequence[Manifest], *, strays: bool = True) -> list[str]:
        """Return what `verify` raises, a fault for each file."""
        self._known.clear()
        listed = [file for cut in cuts for file in self.landed(cut).files]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            faults = [fault for fault in pool.map(partial(file_fault, self.root), listed) if fault is not None]
        known, ids = {file.path for file in listed}, {cut.cut_id for cut in cuts}
        there = [path for path, cut_id in self.data_files() if cut_id in ids] if strays else []
        return faults + [f"{path}: not listed by its cut" for path in there if path not in known]

    def read(
        self, spark: SparkSession, table: str, cuts: Sequence[Manifest], *, bounds: Bounds | None = None
    ) -> DataFrame:
        """Return a table's rows of some cuts, with its schema; only files that the cuts list are read.

        Args:
            bounds: of the offsets, by partition. They are literals in the plan, so the Parquet reader skips row groups
                by them; files that cannot have such rows are not opened at all. `undecodable` has several topics, and
                is bound in all of them.

        Raises LakeError if a cut has not landed.
        """
        schema = TABLES[table].schema
        landed = [self.landed(cut).tables.get(table) for cut in cuts]
        files = [file for part in landed if part is not None for file in part.files]
        if bounds is not None:
            files = [file for file in files if _overlaps(file, bounds)]
        if not files:
            return no_rows(spark, schema)
        paths = (f"file://{self.root / file.path}" for file in files)
        rows = spark.read.schema(schema).option("basePath", f"file://{self.table_directory(table)}").parquet(*paths)
        return rows if bounds is None else rows.where(within(bounds))

    def table_directory(self, table: str) -> Path:
        """Return the folder of a table's files, which has a folder for each day."""
        return self.root / "tables" / table

    def cut_directory(self, manifest: Manifest) -> Path:
        return self.root / "cuts" / manifest.cut_id

    def data_files(self) -> list[tuple[str, str]]:
        """Return all data files, listed or not: path relative to the lake, and the id of the cut in its name."""
        found = sorted(str(path.relative_to(self.root)) for path in self.root.glob("tables/*/*/*.parquet"))
        named = ((path, _DATA_FILE.search(path)) for path in found)
        return [(path, match[1]) for path, match in named if match is not None]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lake for one run; it is free again when the process ends, however it ends.

        Raises LakeLockedError if another process holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LakeLockedError(
                    f"another run is at work on {self.root}: wait until it ends, or stop it; then start again"
                ) from error
            yield

    def _decoded(self, path: Path, read: Callable[[bytes], Document]) -> Document:
        """Decode a document, or return it as decoded before if the file is the same."""
        found = path.stat()
        version = found.st_mtime_ns, found.st_size
        if self._known.get(path, (None, None))[0] != version:
            self._known[path] = version, read(path.read_bytes())
        document: Document = self._known[path][1]
        return document

    def _manifest(self, folder: Path) -> Manifest:
        try:
            manifest = self._decoded(folder / "manifest.json", decode)
        except FileNotFoundError as error:
            raise LakeError(f"{folder / 'manifest.json'} is gone") from error
        if manifest.cut_id != folder.name:
            raise LakeError(f"{folder / 'manifest.json'} is the manifest of cut {manifest.cut_id}")
        return manifest


_list: Final = msgspec.json.Decoder(Landed).decode


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows. Not from Python: workers need not have any."""
    blank = ", ".join(f"cast(null as {field.dataType.simpleString()}) as `{field.name}`" for field in schema)
    return spark.sql(f"select {blank} where false")  # of which the optimizer makes no plan at all


def _overlaps(file: LandedFile, bounds: Bounds) -> bool:
    """Whether a file can have rows within bounds; one whose rows are not known can."""
    return not file.spans or any(
        span.first < bounds[partition][1] and span.last >= bounds[partition][0]
        for of_topic in file.spans.values()
        for partition, span in of_topic.items()
        if partition in bounds
    )


def within(bounds: Bounds, partition: str = "partition", offset: str = "offset") -> Column:
    """Return whether a row is within bounds, of literals only: Spark passes nothing else on to the Parquet reader.

    `partition` and `offset` name the columns that are compared.
    """
    partitions: dict[tuple[int, int], list[int]] = {}
    for number, (begin, end) in sorted(bounds.items()):
        if begin < end:
            partitions.setdefault((begin, end), []).append(number)
    parts = [
        F.col(partition).isin(numbers) & (F.col(offset) >= begin) & (F.col(offset) < end)
        for (begin, end), numbers in partitions.items()
    ]
    return _any(parts)


def _any(conditions: list[Column]) -> Column:
    """Return the disjunction as a balanced tree: Spark's planner recurses as deep as it is."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2
    return _any(conditions[:half]) | _any(conditions[half:])


_CHUNK_BYTES = 1024 * 1024


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new one, and it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 of a file."""
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()


def file_fault(folder: Path, file: LandedFile) -> str | None:
    """Return the path of a file below a folder, with what is wrong with it; None for a sound one."""
    try:
        sound = measure(folder / file.path) == (file.size_bytes, file.sha256)
    except FileNotFoundError:
        return f"{file.path} is gone"
    return None if sound else f"{file.path} was altered"
