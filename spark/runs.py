"""What runs left in the lake: reports, totals, and what the next run starts from.

    runs/<cut_id>/manifest.json, report.json, report.html
    runs/<cut_id>/breaks/<check>/, totals/<table>/, carry/<name>/    Parquet
    runs/<cut_id>/run.json         digests of all of these; written last: what makes the run complete

What holds: a run is made aside and takes its place in one step, so half of one never counts. A run that is made again
must come to the same report, or it does not take its place. It must not know what a run computes.
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
from spark.manifest import Manifest, encode
from spark.report import Report
from spark.staging import write_atomically

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
    """What a complete run consists of.

    Attributes:
        version: of this structure.
        cut_id: the cut's name.
        manifest: digest of its manifest.
        report: report.json, and `page` report.html.
        frames: tables by folder, such as `carry/postings_reach`.
    """

    version: int
    cut_id: str
    manifest: str
    report: LandedFile
    page: LandedFile
    frames: dict[str, Frame]


class Runs:
    """The runs in a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def directory(self, manifest: Manifest) -> Path:
        """Where a run is, or would be."""
        return self.folder(manifest.cut_id)

    def folder(self, cut_id: str) -> Path:
        """The same, by the cut's name."""
        return self._lake.root / "runs" / cut_id

    def record(self, manifest: Manifest) -> RunRecord | None:
        """What the run over this cut consists of; None when there is no complete one.

        Raises:
            LakeError: its list is unreadable, or another run's.
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

        Raises:
            LakeError: there is no such run, or naming each file of it that is gone or altered.
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
        """What a run left for the next one, by name; verified first.

        Raises:
            LakeError: as for `verify`.
        """
        record, directory = self.verify(manifest), self.directory(manifest)

        def read(name: str) -> DataFrame | None:
            frame = record.frames.get(f"{CARRY}/{name}")
            if frame is None:
                return None
            schema = StructType.fromJson(msgspec.json.decode(frame.schema))
            return spark.read.schema(schema).parquet(*(f"file://{directory / file.path}" for file in frame.files))

        return read

    def report(self, manifest: Manifest) -> Report:
        """The report of a complete run, as it was stored.

        Raises:
            LakeError: as for `verify`, or it cannot be read.
        """
        self.verify(manifest)
        path = self.directory(manifest) / REPORT
        try:
            return reports.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} cannot be read ({error}): {_again(path.parent)}") from error

    def begin(self, manifest: Manifest) -> "Run":
        """A run to be made, in an empty folder of its own."""
        return Run(self, manifest)


class Run:
    """One run while it is made.

    Attributes:
        directory: where it is made.
    """

    def __init__(self, runs: Runs, manifest: Manifest) -> None:
        self._runs = runs
        self._manifest = manifest
        self._frames: dict[str, Frame] = {}
        place = runs.directory(manifest)
        self.directory = place.with_name(f".{place.name}")
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def write(self, name: str, rows: DataFrame) -> None:
        """Write a table.

        Args:
            name: its folder, such as `carry/postings_reach`; new in this run.
            rows: what is in it.

        Raises:
            LakeError: another table has the name already.
        """
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
        """Tables that were written, as one.

        Args:
            names: their folders; at least one.
            schema: of all of them.
        """
        paths = [f"file://{self.directory / file.path}" for name in names for file in self._frames[name].files]
        return spark.read.schema(schema).parquet(*paths)

    def publish(self, report: Report, page: str) -> None:
        """Let the run take its place, in the place of an earlier one over the same cut.

        Raises:
            LakeError: the earlier one came to another result. Both are kept.
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
        """Hold the report against that of the run that is there; a run that is damaged cannot object."""
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
