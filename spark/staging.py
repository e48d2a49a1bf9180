"""Publish a cut's files in the lake: written to a staging folder, moved to their names, then listed.

Invariant: a file's name depends on the manifest and on the order of Spark's tasks only, so a repeated landing
overwrites the files of a killed one with the same bytes. Every file is on disk before the list that names it, and the
list is written in one step: half of a cut never counts.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from spark.lake import VERSION, Lake, LakeError, Landed, LandedFile, LandedTable, measure
from spark.manifest import Manifest, encode
from spark.schemas import TABLES

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
