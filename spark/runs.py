"""The runs in the lake: reports, totals, and the state that the next run starts from.

    runs/<cut_id>/manifest.json, report.json, report.html
    runs/<cut_id>/breaks/<check>/, totals/<table>/, carry/<name>/    Parquet
    runs/<cut_id>/run.json         digests of all of these; written last, it makes the run complete

Invariant: a run is made in a folder of its own and renamed in one step, so half of one never counts. A repeated run
must have the same report, or it does not replace the earlier one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark import report as reports
from spark.lake import Lake, LakeError, LandedFile, measure
from spark.land import write_atomically
from spark.manifest import Manifest, encode
from spark.report import Report

VERSION: Final = 1
REPORT: Final = "report.json"
PAGE: Final = "report.html"
MANIFEST: Final = "manifest.json"
CARRY: Final = "carry"
_RECORD = "run.json"


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table that a run wrote: its schema as Spark writes it in JSON, and its files, relative to the run."""

    schema: str
    files: tuple[LandedFile, ...]


class RunRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a complete run."""

    version: int
    cut_id: str
    manifest: str  # digest of the cut's manifest
    report: LandedFile  # report.json
    page: LandedFile  # report.html
    frames: dict[str, Frame]  # tables by folder, such as `carry/postings_reach`


class Runs:
    """The runs in a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def directory(self, manifest: Manifest) -> Path:
        return self.folder(manifest.cut_id)

    def folder(self, cut_id: str) -> Path:
        """Return the folder of a run, or where it would be, by the cut's name."""
        return self._lake.root / "runs" / cut_id

    def record(self, manifest: Manifest) -> RunRecord | None:
        """Return the files of the run over this cut; None when there is no complete one.

        Raises LakeError if its list is unreadable, or another run's.
        """
        path = self.directory(manifest) / _RECORD
        try:
            record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} was altered ({error}): {_again(path.parent)}") from error
        if (record.version, record.cut_id, record.manifest) != (VERSION, manifest.cut_id, manifest.digest):
            raise LakeError(f"{path} is not the list of cut {manifest.cut_id}: {_again(path.parent)}")
        return record

    def verify(self, manifest: Manifest) -> RunRecord:
        """Compare every file of a run with its digest.

        Raises LakeError if there is no such run, or naming each file of it that is gone or altered.
        """
        record, directory = self.record(manifest), self.directory(manifest)
        if record is None:
            raise LakeError(f"there is no complete run over cut {manifest.cut_id} in {self._lake.root}")
        listed = [record.report, record.page, *(file for frame in record.frames.values() for file in frame.files)]
        faults = [fault for file in listed if (fault := _fault(directory, file)) is not None]
        if faults:
            raise LakeError(f"of run {manifest.cut_id}, {'; '.join(faults)}: {_again(directory)}")
        return record

    def carried(self, spark: SparkSession, manifest: Manifest) -> Callable[[str], DataFrame | None]:
        """Verify a run, and return a reader of the tables that it left for the next one, by name."""
        record, directory = self.verify(manifest), self.directory(manifest)

        def read(name: str) -> DataFrame | None:
            frame = record.frames.get(f"{CARRY}/{name}")
            if frame is None:
                return None
            schema = StructType.fromJson(msgspec.json.decode(frame.schema))
            return spark.read.schema(schema).parquet(*(f"file://{directory / file.path}" for file in frame.files))

        return read

    def report(self, manifest: Manifest) -> Report:
        """Return the report of a complete run, as it was stored.

        Raises LakeError as `verify` does, or if it cannot be read.
        """
        self.verify(manifest)
        path = self.directory(manifest) / REPORT
        try:
            return reports.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} cannot be read ({error}): {_again(path.parent)}") from error

    def begin(self, manifest: Manifest) -> "Run":
        """Begin a run in an empty folder of its own."""
        return Run(self, manifest)


class Run:
    """One run while it is made, in its own directory."""

    def __init__(self, runs: Runs, manifest: Manifest) -> None:
        self._runs = runs
        self._manifest = manifest
        self._frames: dict[str, Frame] = {}
        place = runs.directory(manifest)
        self.directory = place.with_name(f".{place.name}")
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def write(self, name: str, rows: DataFrame) -> None:
        """Write a table in the folder of its name, such as `carry/postings_reach`, which must be new in this run."""
        if name in self._frames:
            raise LakeError(f"two tables of one run are called {name}")
        folder = self.directory / name
        rows.write.parquet(f"file://{folder}")
        parts = sorted(folder.glob("part-*.parquet"))
        files = tuple(self._settle(part, folder / f"{number:05d}.parquet") for number, part in enumerate(parts))
        for other in [*folder.glob(".*.crc"), folder / "_SUCCESS"]:
            other.unlink(missing_ok=True)
        self._frames[name] = Frame(rows.schema.json(), files)

    def read(self, spark: SparkSession, names: list[str], schema: StructType) -> DataFrame:
        """Read tables that were written, at least one, as one with that schema."""
        paths = [f"file://{self.directory / file.path}" for name in names for file in self._frames[name].files]
        return spark.read.schema(schema).parquet(*paths)

    def publish(self, report: Report, page: str) -> None:
        """Replace an earlier run over the same cut by this one.

        Raises LakeError if the earlier one had another result. Both are kept then.
        """
        write_atomically(self.directory / MANIFEST, encode(self._manifest))
        write_atomically(self.directory / REPORT, reports.encode(report))
        write_atomically(self.directory / PAGE, page.encode())
        record = RunRecord(
            VERSION,
            self._manifest.cut_id,
            self._manifest.digest,
            self._measured(self.directory / REPORT),
            self._measured(self.directory / PAGE),
            self._frames,
        )
        text = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"
        write_atomically(self.directory / _RECORD, text)
        place = self._runs.directory(self._manifest)
        before = place.with_name(f".{place.name}.before")
        shutil.rmtree(before, ignore_errors=True)
        if place.exists():
            self._compare(place, report)
            place.rename(before)
        self.directory.rename(place)
        shutil.rmtree(before, ignore_errors=True)

    def _compare(self, place: Path, report: Report) -> None:
        """Compare the report with that of the earlier run. A damaged run does not count."""
        try:
            earlier = self._runs.report(self._manifest)
        except LakeError:
            return
        if reports.without_list(earlier) != reports.without_list(report):
            other = place.with_name(f"{place.name}.differs")
            shutil.rmtree(other, ignore_errors=True)
            self.directory.rename(other)
            raise LakeError(
                f"run again, cut {self._manifest.cut_id} gives another report: compare {place / REPORT} with "
                f"{other / REPORT}; the first one stands"
            )

    def _settle(self, part: Path, target: Path) -> LandedFile:
        part.rename(target)
        return self._measured(target)

    def _measured(self, path: Path) -> LandedFile:
        return LandedFile(str(path.relative_to(self.directory)), *measure(path))


def _fault(directory: Path, file: LandedFile) -> str | None:
    try:
        size_bytes, sha256 = measure(directory / file.path)
    except FileNotFoundError:
        return f"{file.path} is gone"
    return None if (size_bytes, sha256) == (file.size_bytes, file.sha256) else f"{file.path} was altered"


def _again(directory: Path) -> str:
    return f"make it again with `once reconcile --manifest {directory / MANIFEST}`"
