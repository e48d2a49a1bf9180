"""The runs in the lake: reports, totals, and the state that the next run starts from.

    runs/<cut_id>/manifest.json, report.json, report.html
    runs/<cut_id>/breaks/all/, totals/<table>/, carry/<name>/    Parquet
    runs/<cut_id>/carry/few/       small tables, all in one file of JSON, which the driver reads without a query
    runs/<cut_id>/run.json         digests of all of these; written last, it makes the run complete

Invariant: a run is made in a folder of its own and renamed in one step, so half of one never counts. A repeated run
must have the same report, or it does not replace the earlier one. A run whose run.json is not the one that was recorded
(`spark.evidence`), or a file of which was altered, ends a later run with an error, and is replaced on request only. Its
report may change only with the code. A run that a manifest names is not replaced by an equal one. Files are on disk
before run.json names them.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from spark import report as reports
from spark.evidence import code, fault_of, record_run, recorded, sha256_of
from spark.lake import Lake, LakeError, LandedFile, file_fault, measure, no_rows, sync, write_atomically
from spark.manifest import Code, Manifest, encode
from spark.night import Few
from spark.report import Report

CARRY: Final = "carry"
FEW: Final = f"{CARRY}/few"
"""The folder of small tables."""


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table that a run wrote: its schema as Spark writes it in JSON, and its files, relative to the run."""

    schema: str
    files: tuple[LandedFile, ...]


class _Small(msgspec.Struct, frozen=True):
    """A line of the file of small tables."""

    name: str
    schema: str  # as Spark writes it in JSON
    rows: list[dict[str, Any]]


SMALL: Final = StructType([StructField(name, StringType()) for name in _Small.__struct_fields__])
"""The lines of the file of small tables, for a reader that does not know it."""
_decode: Final = msgspec.json.Decoder(_Small).decode


class Carried:
    """The tables that a run left.

    Args:
        directory: of the run; the frames' files are relative to it.
    """

    def __init__(self, spark: SparkSession, directory: Path, frames: Mapping[str, Frame]) -> None:
        self._spark = spark
        self._directory = directory
        self._frames = frames
        files = frames[FEW].files if FEW in frames else ()
        lines = [line for file in files for line in (directory / file.path).read_bytes().splitlines()]
        self._few = {one.name: Few(_schema(one.schema), one.rows) for one in map(_decode, lines)}

    def table(self, name: str) -> DataFrame | None:
        """Return a table; None where the run left none of that name, or one without rows."""
        frame = self._frames.get(f"{CARRY}/{name}")
        if frame is None or not frame.files:
            return None
        return read_files(self._spark, self._directory, frame.files, _schema(frame.schema))

    def few(self, name: str) -> Few | None:
        """Return a small table; None where the run left none of that name."""
        return self._few.get(name)

    def has(self, name: str) -> bool:
        """Whether the run left a table of that name, if only one without rows."""
        return f"{CARRY}/{name}" in self._frames


def encode_few(tables: Mapping[str, Few]) -> bytes:
    """Encode the small tables for the next run, by name; those without rows are left out."""
    lines = [_Small(name, few.schema.json(), [dict(row) for row in few.rows]) for name, few in sorted(tables.items())]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines if line.rows)


def read_files(spark: SparkSession, directory: Path, files: Sequence[LandedFile], schema: StructType) -> DataFrame:
    """Read files of one form."""
    if not files:
        return no_rows(spark, schema)
    form = Path(files[0].path).suffix.removeprefix(".")
    paths = [f"file://{directory / file.path}" for file in files]
    return spark.read.format(form).schema(schema).option("mode", "FAILFAST").load(paths)


def _schema(text: str) -> StructType:
    return StructType.fromJson(msgspec.json.decode(text))


VERSION: Final = 1
REPORT: Final = "report.json"
PAGE: Final = "report.html"
MANIFEST: Final = "manifest.json"
_DAMAGED: Final = ".damaged-"
_PUBLISHED: Final = re.compile(rf"(\d{{6,}})-[0-9a-f]{{8}}({re.escape(_DAMAGED)}\d+)?")
"""The folder of a run that was published, and the number of its last cut."""
RECORD: Final = "run.json"
_KEPT: Final = ".kept"
"""The folder of what a run computes once, until it is published."""


class RunRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a complete run."""

    version: int
    cut_id: str
    manifest: str  # digest of the cut's manifest
    report: LandedFile  # report.json
    page: LandedFile  # report.html
    frames: dict[str, Frame]  # tables by folder, such as `carry/postings_reach`
    code: Code = Code()  # that made the run

    @property
    def files(self) -> list[LandedFile]:
        return [self.report, self.page, *(file for frame in self.frames.values() for file in frame.files)]


class SetAside(NamedTuple):
    """A damaged run that was set aside, and whose list can be trusted."""

    folder: Path
    record: RunRecord
    report: Report | None  # None if it was damaged

    @property
    def place_of_report(self) -> str:
        digest = f"the digest {self.record.report.sha256} of the damaged one"
        return digest if self.report is None else str(self.folder / REPORT)

    def agrees(self, record: RunRecord, report: Report) -> bool:
        """Whether a later run has the same result, as far as this one's is known."""
        same = self.record.report.sha256 == record.report.sha256
        return same or (self.report is not None and reports.agree(self.report, report))


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

        Raises LakeError if its list is gone, unreadable, another run's, or not the one that was recorded.
        """
        path = self.directory(manifest) / RECORD
        try:
            text = path.read_bytes()
            record = msgspec.json.decode(text, type=RunRecord)
        except FileNotFoundError as error:
            if path.parent.exists():
                raise LakeError(f"{path} is gone: {make_again(path.parent)}") from error
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} was altered ({error}): {make_again(path.parent)}") from error
        if (record.version, record.cut_id, record.manifest) != (VERSION, manifest.cut_id, manifest.digest):
            raise LakeError(f"{path} is not the list of cut {manifest.cut_id}: {make_again(path.parent)}")
        known = recorded(self._lake, manifest.cut_id)
        if known is not None:
            fault = fault_of(str(path), hashlib.sha256(text).hexdigest(), known.runs)
            if fault is not None:
                raise LakeError(f"{fault}: {make_again(path.parent)}")
        return record

    def verify(self, manifest: Manifest) -> RunRecord:
        """Compare every file of a run with its digest.

        Raises LakeError if there is no such run, or naming each file of it that is gone or altered.
        """
        record, directory = self._complete(manifest), self.directory(manifest)
        faults = [fault for file in record.files if (fault := file_fault(directory, file)) is not None]
        if faults:
            raise LakeError(f"of run {manifest.cut_id}, {'; '.join(faults)}: {make_again(directory)}")
        return record

    def _complete(self, manifest: Manifest) -> RunRecord:
        record = self.record(manifest)
        if record is None:
            raise LakeError(f"there is no complete run over cut {manifest.cut_id} in {self._lake.root}")
        return record

    def carried(self, spark: SparkSession, manifest: Manifest) -> Carried:
        """Verify a run, and return the tables that it left for the next one."""
        return Carried(spark, self.directory(manifest), self.verify(manifest).frames)

    def lines(self, manifest: Manifest, name: str) -> Iterator[bytes]:
        """Yield the lines of a table that was written as JSON; none where the run has no such table.

        Raises LakeError if there is no complete run over this cut, or a file is gone or altered.
        """
        record, directory = self._complete(manifest), self.directory(manifest)
        for file in record.frames[name].files if name in record.frames else ():
            if (fault := file_fault(directory, file)) is not None:
                raise LakeError(f"of run {manifest.cut_id}, {fault}: {make_again(directory)}")
            yield from (directory / file.path).read_bytes().splitlines()

    def report(self, manifest: Manifest) -> Report:
        """Return the report of a complete run, as it was stored.

        Raises LakeError as `verify` does, or if it cannot be read.
        """
        self.verify(manifest)
        path = self.directory(manifest) / REPORT
        try:
            return reports.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path} cannot be read ({error}): {make_again(path.parent)}") from error

    def begin(self, manifest: Manifest) -> "Run":
        """Begin a run in an empty folder of its own.

        Raises LakeError if there is a damaged run over this cut.
        """
        if self.record(manifest) is not None:
            self.verify(manifest)
        return Run(self, manifest)

    def set_aside(self, manifest: Manifest) -> str | None:
        """Rename a damaged run, so that it can be made again; return what is wrong with it, None for a sound one."""
        directory = self.directory(manifest)
        if not directory.exists():
            return None
        try:
            self.verify(manifest)
        except LakeError as error:
            target = self._next_aside(manifest.cut_id)
            directory.rename(target)
            return f"{error}; it is kept as {target}"
        return None

    def last_set_aside(self, manifest: Manifest) -> SetAside | None:
        """Return the last damaged run over this cut whose list can be trusted; None without any."""
        known = recorded(self._lake, manifest.cut_id)
        for folder in reversed(self._aside(manifest.cut_id)):
            try:
                text = (folder / RECORD).read_bytes()
                record = msgspec.json.decode(text, type=RunRecord)
            except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
                continue  # the list was damaged as well
            if known is not None and hashlib.sha256(text).hexdigest() in known.runs:
                return SetAside(folder, record, _sound_report(folder, record))
        return None

    def was_set_aside(self, cut_id: str, digest: str) -> bool:
        """Whether a run whose list had that digest is kept as a damaged one. Its list may be damaged, or gone."""
        known = recorded(self._lake, cut_id)
        others = set(known.runs) - {digest} if known is not None else set()
        return any(sha256_of(aside / RECORD) not in others for aside in self._aside(cut_id))

    def record_lost(self, cut_id: str) -> None:
        """Keep an empty folder for a run of which no file is left, as that of a damaged one."""
        self._next_aside(cut_id).mkdir()

    def named_digest(self, manifest: Manifest) -> str | None:
        """Return the digest of the list of the run over this cut that a later manifest names; None without any.

        The manifest of a cut that waits to be landed counts: it lands as it is.
        """
        later = filter(None, [*self._lake.cuts(), self._lake.pending()])
        return next(filter(None, (cut.evidence.runs.get(manifest.cut_id) for cut in later)), None)

    def is_newest(self, sequence: int) -> bool:
        """Whether no run up to a later cut was published, over one cut or over several.

        A damaged one counts, also when it was set aside: its verdict was newer.
        """
        published = map(_PUBLISHED.fullmatch, (path.name for path in self._lake.root.glob("runs/*")))
        return not any(int(run[1]) > sequence for run in published if run)

    def keep_record(self, manifest: Manifest, text: bytes) -> None:
        """Record a run's list before the run is published."""
        record_run(self._lake, manifest.cut_id, text)

    def _next_aside(self, cut_id: str) -> Path:
        # One of them may have been removed since: their count can be a number that is taken
        last = max(map(_number, self._aside(cut_id)), default=0)
        return self.folder(f"{cut_id}{_DAMAGED}{last + 1}")

    def _aside(self, cut_id: str) -> list[Path]:
        return sorted(self.folder(cut_id).parent.glob(f"{cut_id}{_DAMAGED}*"), key=_number)


def _number(aside: Path) -> int:
    return int(aside.name.rpartition(_DAMAGED)[2])


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

    def write(self, name: str, rows: DataFrame, *, form: str = "parquet") -> None:
        """Write a table in the folder of its name, such as `carry/postings_reach`, which must be new in this run.

        Args:
            form: parquet, or json for what is also read without Spark: an object on each line, nulls left out.
        """
        if name in self._frames:
            raise LakeError(f"two tables of one run are called {name}")
        folder = self.directory / name
        rows.write.format(form).save(f"file://{folder}")
        parts = sorted(folder.glob(f"part-*.{form}"))
        files = tuple(self._settle(part, folder / f"{number:05d}.{form}") for number, part in enumerate(parts))
        for other in [*folder.glob(".*.crc"), folder / "_SUCCESS"]:
            other.unlink(missing_ok=True)
        self._frames[name] = Frame(rows.schema.json(), files)

    def keep(self, rows: DataFrame) -> DataFrame:
        """Compute rows once, and drop their plan.

        They are in files until the run is published: an executor that is lost takes none of them with it.
        """
        rows.sparkSession.sparkContext.setCheckpointDir(f"file://{self.directory / _KEPT}")
        return rows.checkpoint()

    def write_none(self, name: str, schema: StructType) -> None:
        """Record a table without rows, of which there is no file."""
        self._frames[name] = Frame(schema.json(), ())

    def write_few(self, tables: Mapping[str, Few]) -> None:
        """Write the small tables for the next run, by name."""
        path = self.directory / FEW / "00000.json"
        write_atomically(path, encode_few(tables))
        self._frames[FEW] = Frame(SMALL.json(), (self._measured(path),))

    def read(self, spark: SparkSession, names: list[str], schema: StructType) -> DataFrame:
        """Read tables that were written, at least one, as one with that schema."""
        return read_files(spark, self.directory, [file for name in names for file in self._frames[name].files], schema)

    def publish(self, report: Report, page: str) -> str | None:
        """Replace an earlier run over the same cut by this one, unless a manifest names it: then they are equal.

        Returns a line for people if the run replaces a damaged one of other code, which had another result.

        Raises LakeError if the earlier one is damaged, or had another result. Both are kept then.
        """
        shutil.rmtree(self.directory / _KEPT, ignore_errors=True)
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
            code(),
        )
        for folder in sorted({folder for file in record.files for folder in Path(file.path).parents}):
            sync(self.directory / folder)
        text = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"
        write_atomically(self.directory / RECORD, text)
        cut_id, place = self._manifest.cut_id, self._runs.directory(self._manifest)
        changed = self._compare(place, report, record)
        named = self._runs.named_digest(self._manifest)
        if place.exists() and named is not None:
            shutil.rmtree(self.directory)
            return None
        if named not in {None, hashlib.sha256(text).hexdigest()} and not self._runs.was_set_aside(cut_id, named):
            self._runs.record_lost(cut_id)
        self._runs.keep_record(self._manifest, text)
        before = place.with_name(f".{place.name}.before")
        shutil.rmtree(before, ignore_errors=True)
        if place.exists():
            place.rename(before)
        self.directory.rename(place)
        sync(place.parent)
        shutil.rmtree(before, ignore_errors=True)
        return changed

    def _compare(self, place: Path, report: Report, record: RunRecord) -> str | None:
        """Compare the report with that of the earlier run, or of the damaged run that was set aside.

        Returns a line for people if the damaged one had another result, and other code made it.
        """
        aside = None if place.exists() else self._runs.last_set_aside(self._manifest)
        if aside is not None:
            equal, earlier = aside.agrees(record, report), aside.place_of_report
        else:
            equal = not place.exists() or reports.agree(self._runs.report(self._manifest), report)
            earlier = str(place / REPORT)
        if equal:
            return None
        cut_id = self._manifest.cut_id
        if aside is not None and aside.record.code != record.code:
            return (
                f"run {cut_id} has another report than the damaged one, which another version of the code made: "
                f"compare {earlier} with {place / REPORT}"
            )
        other = place.with_name(f"{place.name}.differs")
        shutil.rmtree(other, ignore_errors=True)
        self.directory.rename(other)
        raise LakeError(
            f"run again, cut {cut_id} gives another report: compare {earlier} with {other / REPORT}; the first "
            "one is kept"
        )

    def _settle(self, part: Path, target: Path) -> LandedFile:
        part.rename(target)
        sync(target)
        return self._measured(target)

    def _measured(self, path: Path) -> LandedFile:
        return LandedFile(str(path.relative_to(self.directory)), *measure(path))


def _sound_report(directory: Path, record: RunRecord) -> Report | None:
    """Return the report of a run that was set aside; None if it is damaged as well."""
    if file_fault(directory, record.report) is not None:
        return None
    try:
        return reports.decode((directory / REPORT).read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def make_again(directory: Path) -> str:
    """Return how to make a run again that is damaged or gone."""
    return f"make it again with `once reconcile --replace --manifest {_cut(directory)}`"


def _cut(directory: Path) -> Path:
    """Return the file with a run's manifest, which is the cut's own unless the run is over several."""
    of_cut = directory.parents[1] / "cuts" / directory.name / MANIFEST
    return of_cut if of_cut.exists() else directory / MANIFEST
