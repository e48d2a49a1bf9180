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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.manifest import Manifest, ManifestError, check_follows, decode
from spark.schemas import TABLES

VERSION: Final = 1
_CHUNK_BYTES = 1024 * 1024
_DATA_FILE: Final = re.compile(r"/(\d{6,}-[0-9a-f]{8})-\d{5}\.parquet$")


class LakeError(RuntimeError):
    """The lake is not as its cuts say; the message names what is wrong."""


class LakeLockedError(RuntimeError):
    """Another run is at work on the lake."""


class LandedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a cut."""

    path: str  # relative to the lake
    size_bytes: int
    sha256: str  # hex


class LandedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows that a cut added to one table, and their files in order."""

    rows: int
    files: tuple[LandedFile, ...]


class Landed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of one cut."""

    version: int
    cut_id: str
    manifest: str  # digest of the cut's manifest
    tables: dict[str, LandedTable]  # by name, those to which the cut added rows

    @property
    def rows(self) -> dict[str, int]:
        """Rows by table, 0 where the cut has none."""
        return {name: self.tables[name].rows if name in self.tables else 0 for name in TABLES}

    @property
    def files(self) -> list[LandedFile]:
        return [file for table in self.tables.values() for file in table.files]


class Lake:
    """The lake in a folder, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

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

    def landed(self, manifest: Manifest) -> Landed:
        """Return the files of a cut; raise LakeError if it has not landed, or its list is not the cut's."""
        path = self.cut_directory(manifest) / "landed.json"
        try:
            landed = msgspec.json.decode(path.read_bytes(), type=Landed)
        except FileNotFoundError as error:
            raise LakeError(f"cut {manifest.cut_id} has not landed in {self.root}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} was altered: {error}") from error
        if (landed.version, landed.cut_id, landed.manifest) != (VERSION, manifest.cut_id, manifest.digest):
            raise LakeError(f"{path} is not the list of cut {manifest.cut_id}")
        return landed

    def verify(self, cuts: Sequence[Manifest]) -> None:
        """Compare every file of the cuts with its digest.

        Raises LakeError naming each file that is gone, altered, or there without being listed.
        """
        listed = [file for cut in cuts for file in self.landed(cut).files]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            faults = [fault for fault in pool.map(self._fault, listed) if fault is not None]
        known, ids = {file.path for file in listed}, {cut.cut_id for cut in cuts}
        there = [path for path, cut_id in self.data_files() if cut_id in ids]
        faults += [f"{path}: not listed by its cut" for path in there if path not in known]
        if faults:
            raise LakeError("; ".join(faults))

    def read(self, spark: SparkSession, table: str, cuts: Sequence[Manifest]) -> DataFrame:
        """Return a table's rows of some cuts, with its schema; only files that the cuts list are read.

        Raises LakeError if a cut has not landed.
        """
        schema = TABLES[table].schema
        landed = [self.landed(cut).tables.get(table) for cut in cuts]
        paths = [f"file://{self.root / file.path}" for part in landed if part is not None for file in part.files]
        if not paths:
            # Not from Python: workers need not have any
            nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in schema)
            return spark.range(0).select(*nothing)
        return spark.read.schema(schema).option("basePath", f"file://{self.table_directory(table)}").parquet(*paths)

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

    def _manifest(self, folder: Path) -> Manifest:
        try:
            manifest = decode((folder / "manifest.json").read_bytes())
        except FileNotFoundError as error:
            raise LakeError(f"{folder / 'manifest.json'} is gone") from error
        if manifest.cut_id != folder.name:
            raise LakeError(f"{folder / 'manifest.json'} is the manifest of cut {manifest.cut_id}")
        return manifest

    def _fault(self, file: LandedFile) -> str | None:
        try:
            size_bytes, sha256 = measure(self.root / file.path)
        except FileNotFoundError:
            return f"{file.path}: gone"
        if (size_bytes, sha256) != (file.size_bytes, file.sha256):
            return f"{file.path}: altered"
        return None


def measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 of a file."""
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()
