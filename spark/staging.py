"""The staging folder of one cut: files as jobs write them, and their publication in the lake.

    .staging/<cut_id>/<job>/table=<table>/day=YYYY-MM-DD/part-*.parquet
    .staging/<cut_id>/<job>.json      a finished job's rows and files, with digests

Invariant: the manifest is in the lake before any record is read, so a landing that was killed is continued with the
same offsets. A finished job's files are on disk before its list is, and a list counts only while every file of it is
unaltered. Files are published under names that depend on the manifest and on the order of Spark's tasks only.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from spark.evidence import record_landed
from spark.lake import (
    VERSION,
    Count,
    Lake,
    LakeError,
    Landed,
    LandedFile,
    LandedTable,
    Spans,
    Unknown,
    file_fault,
    measure,
    sync,
    write_atomically,
)
from spark.manifest import Manifest, encode
from spark.schemas import TABLES

_PUBLISHING: Final = ".publishing"
_PART: Final = re.compile(r"part-(\d+)-.*\.parquet")


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished job of a landing."""

    rows: dict[str, int]  # by table, those that got rows
    files: tuple[LandedFile, ...]  # relative to the staging folder
    unknown: Unknown | None = None  # records with fields that no event of the topic has


class Staging:
    """The folder in which one cut is written. What earlier tries left unfinished, of any cut, is removed."""

    def __init__(self, lake: Lake, manifest: Manifest) -> None:
        self._lake = lake
        self._manifest = manifest
        self.root = lake.root / ".staging" / manifest.cut_id
        write_atomically(lake.cut_directory(manifest) / "manifest.json", encode(manifest))
        self._jobs = self._finished()
        # A landing that was killed while it moved files may have left some: only then the whole lake is listed
        self._interrupted = any(self.root.parent.glob(f"*{_PUBLISHING}"))
        kept = {
            self.root,
            *self.root.parent.glob(f"*{_PUBLISHING}"),
            *map(self.job_directory, self._jobs),
            *map(self._list, self._jobs),
        }
        for path in [*self.root.parent.glob("*"), *self.root.glob("*")]:
            if path not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.root.mkdir(parents=True, exist_ok=True)

    def job_directory(self, job: int) -> Path:
        """Return the folder for a job's rows, by table and day; it does not exist before the job.

        The jobs' numbers order the files of a table.
        """
        return self.root / f"{job:08d}"

    def directory(self, table: str, job: int) -> Path:
        """Return the folder for a job's rows of one table, partitioned by day."""
        return self.job_directory(job) / f"table={table}"

    def job(self, number: int) -> Job | None:
        """Return a job that an earlier try has finished."""
        return self._jobs.get(number)

    def finish(self, number: int, rows: Mapping[str, int], unknown: Unknown | None = None) -> Job:
        """Keep a job's files, whatever happens to the landing from now on."""
        paths = sorted(self.job_directory(number).glob("table=*/day=*/*.parquet"))
        files = []
        for path in paths:
            sync(path)
            files.append(LandedFile(str(path.relative_to(self.root)), *measure(path)))
        for folder in sorted({folder for path in paths for folder in path.relative_to(self.root).parents}):
            sync(self.root / folder)
        done = Job(dict(rows), tuple(files), unknown)
        write_atomically(self._list(number), msgspec.json.encode(done))
        self._jobs[number] = done
        return done

    def discard(self) -> None:
        """Forget finished jobs too, as their files are not what was read."""
        shutil.rmtree(self.root)

    def files(self) -> list[Path]:
        """Return all data files that were written, finished or not."""
        return sorted(self.root.glob("*/table=*/day=*/*.parquet"))

    def publish(
        self,
        rows: Mapping[str, int],
        spans: Mapping[Path, Spans] | None = None,
        counts: Mapping[str, dict[int, Count]] | None = None,
        unknown: Mapping[str, Unknown] | None = None,
    ) -> Landed:
        """Move the written files to their names, and list them; then the cut has landed.

        Args:
            rows: counts by table.
            spans: for each file its rows and offsets.
            counts: of each topic partition, for the list.
            unknown: by topic, for the list.

        Raises LakeError if a table has rows and no file, or files and no rows.
        """
        lake, cut_id = self._lake, self._manifest.cut_id
        moves = {table: self._moves(table) for table in TABLES}
        for table, of_table in moves.items():
            if bool(of_table) != bool(rows.get(table, 0)):
                raise LakeError(f"cut {cut_id} has {rows.get(table, 0)} rows of {table} in {len(of_table)} files")
        self.root.with_suffix(_PUBLISHING).touch()
        measured = {self.root / file.path: file for job in self._jobs.values() for file in job.files}
        tables = {}
        for table, of_table in moves.items():
            if of_table:
                files = tuple(
                    self._move(source, target, measured.get(source), (spans or {}).get(source, {}))
                    for source, target in of_table
                )
                tables[table] = LandedTable(rows[table], files)
        landed = Landed(VERSION, cut_id, self._manifest.digest, tables, dict(counts or {}), dict(unknown or {}))
        if self._interrupted:
            self._remove_unlisted(landed)
        folders = {folder for file in landed.files for folder in Path(file.path).parents}
        for folder in sorted(folders):
            sync(lake.root / folder)
        text = msgspec.json.format(msgspec.json.encode(landed), indent=2) + b"\n"
        record_landed(lake, self._manifest, text)
        write_atomically(lake.cut_directory(self._manifest) / "landed.json", text)
        shutil.rmtree(self.root.parent)
        return landed

    def _moves(self, table: str) -> list[tuple[Path, Path]]:
        """Return each written file of a table and its target: by day, then by job, then by task."""
        written = defaultdict(list)
        for path in self.root.glob(f"*/table={table}/day=*/*.parquet"):
            found = _PART.fullmatch(path.name)
            if found is None:
                raise LakeError(f"{path} was not written by a task")
            written[path.parent.name].append((path.parents[2].name, int(found[1]), path.name, path))
        return [
            (path, self._lake.table_directory(table) / day / f"{self._manifest.cut_id}-{number:05d}.parquet")
            for day, parts in sorted(written.items())
            for number, (*_, path) in enumerate(sorted(parts))
        ]

    def _move(self, source: Path, target: Path, measured: LandedFile | None, spans: Spans) -> LandedFile:
        if measured is None:
            sync(source)
            size_bytes, sha256 = measure(source)
        else:
            size_bytes, sha256 = measured.size_bytes, measured.sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return LandedFile(str(target.relative_to(self._lake.root)), size_bytes, sha256, spans)

    def _remove_unlisted(self, landed: Landed) -> None:
        """Remove files that killed landings left: of this cut and not in its list, and of cuts that never landed.

        The lake reads none of them, but a reader of all files of a table would have their rows twice.
        """
        listed = {file.path for file in landed.files}
        others = {cut.cut_id for cut in self._lake.cuts()} - {landed.cut_id}
        for path, cut_id in self._lake.data_files():
            if path not in listed and cut_id not in others:
                (self._lake.root / path).unlink()

    def _finished(self) -> dict[int, Job]:
        found = {int(path.stem): _read(path) for path in self.root.glob("*.json")}
        return {number: job for number, job in found.items() if job is not None and self._is_whole(job)}

    def _is_whole(self, job: Job) -> bool:
        """Whether every file of a job is there, unaltered: a landing may be killed while it moves files."""
        return all(file_fault(self.root, file) is None for file in job.files)

    def _list(self, number: int) -> Path:
        return self.root / f"{number:08d}.json"


def _read(path: Path) -> Job | None:
    """Return a job's list; None if it is not one, and the job is done again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
