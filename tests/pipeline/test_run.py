"""A run: its input, the tables that it keeps, and that no partial or altered run counts.

The checks are stand-ins: each row of a table `payments` is a break, and is carried.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_RAW
from spark import balances, register, totals
from spark import nightly as runs_module
from spark.audit import audit
from spark.evidence import code, evidence_of, sha256_of
from spark.history import whole
from spark.lake import Count, Lake, LakeError, LandedFile, measure
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Code, Evidence, Manifest, Range, encode, joined, seal
from spark.metrics import Progress
from spark.night import BREAKS, Checked, Kind, Night
from spark.nightly import LATE_MIN_MS, Work, first_late, work
from spark.report import BREAKS as BREAKS_VERDICT
from spark.report import EXPLAINED, Explained, Report
from spark.report import encode as encode_report
from spark.runs import Runs
from spark.schemas import TABLES
from spark.staging import Staging
from spark.totals import CurrencyTotal, Totals
from tests.tiers import full, mostly_full

LARGE_MINOR = 2**70
DAY_MS = 86_400_000


class Pipeline:
    """A lake that rows land in, cut by cut.

    Attributes:
        finds: breaks for each payment; another number gives another result over the same cut.
    """

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.lake = Lake(root)
        self.runs = Runs(self.lake)
        self.finds = 1
        self.said: list[str] = []
        self.progress = Progress(self.said.append, made=lambda report: self.said.append(report.cut.cut_id))

    def land(self, *payments: str, explanations: str = "", version: int = VERSION, lost: int = 0) -> Manifest:
        """Land a cut with these payments.

        Args:
            explanations: digest of the newest one.
            lost: offsets of payments.raw that no batch of the log covers.
        """
        cut = self.cut(explanations, version)
        start = cut.sequence - 1
        staging = Staging(self.lake, cut)
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in TABLES["payments"].schema]
        rows = self.spark.createDataFrame([(name,) for name in payments], "name string").coalesce(1)
        filled = rows.select("name", *columns).withColumn("payment_id", F.col("name")).drop("name")
        filled = filled.withColumns({"partition": F.lit(0), "offset": F.lit(start).cast("bigint")})
        day = filled.withColumn("day", F.lit("2026-01-05").cast("date"))
        day.write.partitionBy("day").parquet(f"file://{staging.directory('payments', 0)}")
        counts = {PAYMENTS_RAW: {0: Count(lost, 0, 0, lost, lost)}} if lost else None
        staging.publish({"payments": len(payments)}, counts=counts)
        return cut

    def cut(self, explanations: str = "", version: int = VERSION) -> Manifest:
        """Take a cut, one offset after the last landed cut."""
        cuts = self.lake.cuts()
        start, previous = len(cuts), cuts[-1].digest if cuts else ""
        ranges = {0: Range(start, start + 1, start + 1)}
        return seal(
            Manifest(
                version,
                start + 1,
                1_767_600_000_000,
                "cluster",
                dict.fromkeys(LANDED_TOPICS, ranges),
                {group: {0: start + 1} for group in INPUTS},
                True,
                previous,
                evidence=evidence_of(self.lake, cuts) if version == VERSION else Evidence(),
                explanations=explanations,
            )
        )

    def run(self, cut: Manifest, **options: bool | int) -> list[Report]:
        return self.work(cut, **options).reports

    def work(self, cut: Manifest, **options: bool | int) -> Work:
        return work(
            self.spark,
            self.lake,
            cut,
            None,
            progress=self.progress,
            **options,  # type: ignore[arg-type]
        )

    def report(self, cut: Manifest) -> bytes:
        return (self.runs.directory(cut) / "report.json").read_bytes()

    def check(self, night: Night) -> Checked:
        """Report every payment of this run as a break, and count those of earlier runs."""
        new, before = night.new("payments").select("payment_id"), night.carried("payments_seen")
        seen = night.keep(new if before is None else new.unionByName(before))
        history = night.history("payments", whole(night, PAYMENTS_ACCEPTED))
        return Checked(
            _breaks(new.crossJoin(self.spark.range(self.finds))),
            {"seen": seen.count(), "history": history.count()},
            {"ledger": 1},
            {"payments_seen": seen},
        )


def _breaks(payments: DataFrame) -> DataFrame:
    nothing = {field.name: F.lit(None).cast(field.dataType).alias(field.name) for field in BREAKS}
    found = {
        **nothing,
        "kind": F.lit(Kind.MISSING.value).alias("kind"),
        "check": F.lit("stand-in").alias("check"),
        "payment_id": F.col("payment_id"),
        "detail": F.lit("found").alias("detail"),
        "rechecked": F.lit(False).alias("rechecked"),
    }
    return payments.select(*(found[field.name] for field in BREAKS))


def _totals(night: Night) -> Totals:
    some = night.new("payments").select("payment_id")
    large = CurrencyTotal("EUR", 1, 0, -LARGE_MINOR, LARGE_MINOR, 0, 0, 0, LARGE_MINOR)
    figures = {"seen": 0} if not night.manifest.settled else {}
    return Totals({"account_days": some}, some, (large,), (), (), (), (), figures, "digest")


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    made = Pipeline(spark, tmp_path / "lake")
    monkeypatch.setattr(runs_module, "ALL", {"stand-in": made.check})
    monkeypatch.setattr(totals, "totals", _totals)
    monkeypatch.setattr(balances, "check", lambda _night, _currencies: Checked())
    with ExitStack() as stack:
        stack.enter_context(made.lake.lock())
        yield made


def test_a_run_writes_all_its_findings(pipeline: Pipeline) -> None:
    cut = pipeline.land("b", "a", "c")
    [report] = pipeline.run(cut, listed_max=2)
    assert (report.verdict, report.breaks.total, report.full) == ("breaks", 3, True)
    assert [item.payment_id for item in report.breaks.listed] == ["a", "b"]
    assert report.figures == {"seen": 3, "history": 0, "unknown_fields": 0}
    directory = pipeline.runs.directory(cut)
    assert pipeline.report(cut) == encode_report(report)
    assert json.loads(pipeline.report(cut))["totals"]["currencies"][0]["turnover_minor"] == str(LARGE_MINOR)
    assert (directory / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (directory / "manifest.json").read_bytes() == encode(cut)
    listed = pipeline.runs.verify(cut).frames
    assert set(listed) == {
        "breaks/all",
        "carry/payments_seen",
        "carry/account_balances",
        "carry/few",
        "carry/register",
        "totals/account_days",
    }
    on_disk = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    files = {file.path for frame in listed.values() for file in frame.files}
    assert on_disk == files | {"manifest.json", "report.json", "report.html", "run.json"}


def test_a_run_starts_from_the_previous_run(pipeline: Pipeline) -> None:
    pipeline.run(pipeline.land("a"))
    [report] = pipeline.run(pipeline.land("b", "c"))
    assert report.figures == {"seen": 3, "history": 1, "unknown_fields": 0}
    assert (report.full, report.breaks.total, report.breaks.opened) == (False, 3, 2)


@full
def test_missing_runs_are_made_first_and_a_full_run_starts_from_nothing(pipeline: Pipeline) -> None:
    cuts = [pipeline.land(name) for name in "abc"]
    reports = pipeline.run(cuts[-1])
    assert [report.cut.cut_id for report in reports] == [cut.cut_id for cut in cuts]
    [full] = pipeline.run(cuts[-1], full=True)
    assert full.cut.digest == joined(cuts).digest
    assert full.figures == {"seen": 3, "history": 0, "unknown_fields": 0}
    assert [report.breaks.total for report in reports] == [1, 2, 3]
    assert [report.breaks.opened for report in reports] == [1, 1, 1]
    assert full.breaks.total == 3
    [again] = pipeline.run(joined(cuts))
    assert again == full


def test_what_the_log_lost_is_the_same_breaks_in_a_full_run(pipeline: Pipeline) -> None:
    pipeline.finds = 0
    cuts = [pipeline.land(name, lost=number) for number, name in enumerate("ab", 1)]
    *_, last = pipeline.run(cuts[-1])
    [full] = pipeline.run(cuts[-1], full=True)
    shown = [(one.check, one.topic, one.offset, one.detail.partition(" ")[0]) for one in last.breaks.listed]
    assert shown == [("cut", PAYMENTS_RAW, 0, "1"), ("cut", PAYMENTS_RAW, 1, "2")]
    assert [one.break_id for one in full.breaks.listed] == [one.break_id for one in last.breaks.listed]


def test_a_bounded_backfill_goes_on_where_it_ended(pipeline: Pipeline) -> None:
    cuts = [pipeline.land(name) for name in "abc"]
    ids = [cut.cut_id for cut in cuts]
    first, left = pipeline.work(cuts[-1], runs_max=2)
    assert ([report.cut.cut_id for report in first], left) == (ids[:2], 1)
    said = [line for line in pipeline.said if line.startswith("run ") or line in ids]
    assert said[1:4:2] == ids[:2], "a run is handed on before the next one begins"
    said = said[::2]
    assert said[0] == f"run 1 of 3, cut {cuts[0].cut_id}"
    assert re.fullmatch(rf"run 2 of 3, cut {cuts[1].cut_id}, about \d+ (s|min) left", said[1])
    assert pipeline.progress.seconds.keys() == {"verify", "check:stand-in", "totals", "register", "publish"}
    assert min(pipeline.progress.seconds.values()) > 0
    second, left = pipeline.work(cuts[-1], runs_max=2)
    assert ([report.cut.cut_id for report in second], left) == ([cuts[-1].cut_id], 0)
    assert [report.breaks.total for report in first + second] == [1, 2, 3]
    # A full run takes the place of no other
    late = [pipeline.land(name) for name in "de"]
    [full_run], left = pipeline.work(late[-1], full=True)
    assert (full_run.breaks.total, left) == (5, 0)
    made, _ = pipeline.work(late[-1])
    assert [report.cut.cut_id for report in made] == [cut.cut_id for cut in late]


def test_a_repeated_run_gives_the_same_bytes(pipeline: Pipeline) -> None:
    cut = pipeline.land("a", "b")
    pipeline.run(cut)
    first = {name: (pipeline.runs.directory(cut) / name).read_bytes() for name in ("report.json", "report.html")}
    pipeline.run(cut)
    assert {name: (pipeline.runs.directory(cut) / name).read_bytes() for name in first} == first


@full
def test_another_length_of_the_list_is_the_same_result(pipeline: Pipeline) -> None:
    cut = pipeline.land("a", "b")
    pipeline.run(cut)
    [shorter] = pipeline.run(cut, listed_max=1)
    assert len(shorter.breaks.listed) == 1
    assert pipeline.report(cut) == encode_report(shorter)


@full
def test_a_run_with_another_result_does_not_replace_the_first(pipeline: Pipeline) -> None:
    cut = pipeline.land("a")
    pipeline.run(cut)
    first = pipeline.report(cut)
    pipeline.finds = 2
    with pytest.raises(LakeError, match="gives another report: compare"):
        pipeline.run(cut)
    assert pipeline.report(cut) == first
    pipeline.runs.verify(cut)
    other = pipeline.lake.root / "runs" / f"{cut.cut_id}.differs" / "report.json"
    assert json.loads(other.read_bytes())["breaks"]["total"] == 2


@pytest.mark.parametrize(
    ("name", "gone"),
    mostly_full(
        [
            ("carry/payments_seen/00000.parquet", False),
            ("carry/account_balances/00000.parquet", True),
            ("report.json", False),
        ],
        [("report.json", False)],
    ),
)
def test_nothing_starts_from_a_run_that_was_altered(pipeline: Pipeline, name: str, gone: bool) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")
    pipeline.run(first)
    path = pipeline.runs.directory(first) / name
    good = path.read_bytes()
    if gone:
        path.unlink()
    else:
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    message = f"of run {first.cut_id}, {name} {'is gone' if gone else 'was altered'}: make it again with"
    with pytest.raises(LakeError, match=message):
        pipeline.run(second)
    with pytest.raises(LakeError, match=message):
        pipeline.run(first)
    pipeline.run(first, replace=True)
    assert f"replacing a damaged run: of run {first.cut_id}, {name}" in " ".join(pipeline.said)
    pipeline.run(second)
    aside = pipeline.lake.root / "runs" / f"{first.cut_id}.damaged-1"
    assert (aside / name).exists() is not gone


def test_a_changed_carry_with_its_own_sum_mended_is_noticed(pipeline: Pipeline) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")
    pipeline.run(first)
    folder, name = pipeline.runs.directory(first), "carry/payments_seen/00000.parquet"
    record = pipeline.runs.verify(first)
    pipeline.spark.createDataFrame([("other",)], "payment_id string").coalesce(1).write.parquet(f"file://{folder}/new")
    [forged] = (folder / "new").glob("part-*.parquet")
    forged.rename(folder / name)
    shutil.rmtree(folder / "new")
    frame = record.frames["carry/payments_seen"]
    mended = msgspec.structs.replace(frame, files=(LandedFile(name, *measure(folder / name)),))
    changed = msgspec.structs.replace(record, frames={**record.frames, "carry/payments_seen": mended})
    (folder / "run.json").write_bytes(msgspec.json.encode(changed))
    message = r"run\.json was altered: its digest was not recorded: make it again with"
    with pytest.raises(LakeError, match=message):
        pipeline.run(second)
    with pytest.raises(LakeError, match=message.split(": make", maxsplit=1)[0]):
        evidence_of(pipeline.lake, pipeline.lake.cuts())
    assert [fault for fault in audit(pipeline.lake).faults if "run.json was altered" in fault]


@full
def test_a_damaged_run_is_not_replaced_by_one_with_another_report(pipeline: Pipeline) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")
    pipeline.run(first)
    (pipeline.runs.directory(first) / "report.json").unlink()
    pipeline.finds = 2
    with pytest.raises(LakeError, match="gives another report: compare the digest"):
        pipeline.run(first, replace=True)
    assert (pipeline.lake.root / "runs" / f"{first.cut_id}.differs" / "report.json").exists()
    pipeline.finds = 1
    pipeline.run(first)
    pipeline.run(second)


@pytest.mark.parametrize("damaged", ["report.json", "report.html"])
@full
def test_a_damaged_run_of_other_code_may_get_another_report(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    second = pipeline.land("b")
    (pipeline.runs.directory(first) / damaged).unlink()
    pipeline.finds = 2
    monkeypatch.setattr("spark.runs.code", lambda: Code("later"))
    pipeline.run(first, replace=True)
    assert f"run {first.cut_id} has another report than the damaged one" in " ".join(pipeline.said)
    pipeline.run(second)
    found = audit(pipeline.lake)
    assert found.faults == ()
    assert found.replaced == (f"runs/{first.cut_id}, whose report.json is not that of {first.cut_id}.damaged-1",)


@full
def test_a_damaged_run_is_replaced_by_one_that_lists_fewer_breaks(pipeline: Pipeline) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    (pipeline.runs.directory(first) / "report.html").unlink()
    [again] = pipeline.run(first, replace=True, listed_max=0)
    assert (again.breaks.total, again.breaks.listed) == (1, ())


def test_a_lost_run_is_made_again_and_audited_as_replaced(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    second = pipeline.land("b")
    assert pipeline.runs.named_digest(first) == second.evidence.runs[first.cut_id]
    for number in (1, 2):
        shutil.rmtree(pipeline.runs.directory(first))
        monkeypatch.setattr("spark.runs.code", lambda number=number: Code(f"later {number}"))
        pipeline.run(second)
        found = audit(pipeline.lake)
        assert (found.faults, found.replaced) == ((), (f"runs/{first.cut_id}",))
        shutil.rmtree(pipeline.runs.directory(second))
    aside = [path.name for path in pipeline.lake.root.glob("runs/*.damaged-*")]
    assert aside == [f"{first.cut_id}.damaged-1"]


@full
def test_a_lost_run_is_made_again_as_the_weekly_audit_says(pipeline: Pipeline) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    second = pipeline.land("b")
    pipeline.run(second, now_ms=DAY_MS)
    shutil.rmtree(pipeline.runs.directory(first))
    manifest = pipeline.lake.cut_directory(first) / "manifest.json"
    command = f"runs/{first.cut_id} is gone: make it again with `once reconcile --replace --manifest {manifest}`"
    for cut in (second, first):
        with pytest.raises(LakeError, match=re.escape(command)):
            pipeline.run(cut, now_ms=8 * DAY_MS)
    pipeline.run(first, replace=True, now_ms=8 * DAY_MS)
    pipeline.run(second, now_ms=8 * DAY_MS)
    assert audit(pipeline.lake).faults == ()


def test_files_of_a_run_are_on_disk_before_its_list(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, synced = pipeline.land("a"), list[Path]()
    monkeypatch.setattr("spark.runs.sync", synced.append)
    pipeline.run(cut)
    place = pipeline.runs.directory(cut)
    made = place.with_name(f".{place.name}")
    data = {made / file.path for file in pipeline.runs.verify(cut).files if file.path.endswith("parquet")}
    assert {path for path in synced if path.suffix == ".parquet"} == data
    assert {*(path.parent for path in data), made / "carry", made, place.parent} <= set(synced)


@full
def test_a_run_that_a_manifest_names_is_kept_as_it_is(pipeline: Pipeline) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    kept = (pipeline.runs.directory(first) / "run.json").read_bytes()
    second = pipeline.land("b")
    assert second.evidence == Evidence(
        sha256_of(pipeline.lake.cut_directory(first) / "landed.json"),
        {first.cut_id: hashlib.sha256(kept).hexdigest()},
        code(),
    )
    [again] = pipeline.run(first, listed_max=0)
    assert again.breaks.listed == ()
    assert (pipeline.runs.directory(first) / "run.json").read_bytes() == kept
    pipeline.run(second)
    third = pipeline.land("c")
    assert set(third.evidence.runs) == {second.cut_id}
    assert audit(pipeline.lake).faults == ()


def test_a_run_that_the_manifest_of_a_waiting_cut_names_is_kept_as_it_is(pipeline: Pipeline) -> None:
    first = pipeline.land("a")
    pipeline.run(first)
    kept = (pipeline.runs.directory(first) / "run.json").read_bytes()
    second = pipeline.cut()
    waiting = Staging(pipeline.lake, second)  # the landing begins, and is killed
    assert pipeline.lake.pending() == second
    pipeline.run(first, listed_max=0)
    assert (pipeline.runs.directory(first) / "run.json").read_bytes() == kept
    waiting.publish({})
    assert audit(pipeline.lake).faults == ()


@pytest.mark.parametrize("text", ["", '{"version": 1}'])
@full
def test_a_list_of_a_run_that_was_altered_is_noticed(pipeline: Pipeline, text: str) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")
    pipeline.run(first)
    (pipeline.runs.directory(first) / "run.json").write_text(text)
    with pytest.raises(LakeError, match=r"run\.json was altered"):
        pipeline.run(second)


@full
def test_the_list_of_another_run_is_refused(pipeline: Pipeline) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")
    pipeline.run(second)
    stolen = (pipeline.runs.directory(second) / "run.json").read_bytes()
    (pipeline.runs.directory(first) / "run.json").write_bytes(stolen)
    with pytest.raises(LakeError, match="is not the list of cut"):
        pipeline.runs.verify(first)


@pytest.mark.parametrize("cut", mostly_full([0, 1], {1}))
def test_a_landed_file_that_was_altered_is_noticed_when_new_and_each_week(pipeline: Pipeline, cut: int) -> None:
    cuts = [pipeline.land("a"), pipeline.land("b")]
    pipeline.run(cuts[0], now_ms=DAY_MS)
    [file] = pipeline.lake.landed(cuts[cut]).files
    [other] = pipeline.lake.landed(cuts[1 - cut]).files
    (pipeline.lake.root / file.path).write_bytes((pipeline.lake.root / other.path).read_bytes())
    if cut == 0:
        pipeline.run(cuts[1], now_ms=8 * DAY_MS - 1)  # history is not read in full every night
    with pytest.raises(LakeError, match=f"{file.path} was altered"):
        pipeline.run(cuts[1], now_ms=8 * DAY_MS)
    with pytest.raises(LakeError, match=f"{file.path} was altered"):
        pipeline.run(cuts[1], now_ms=0)  # the clock was set back: nothing shows when the lake was verified


@full
def test_a_run_that_was_killed_on_the_way_does_not_count(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pipeline.land("a"), pipeline.land("b")

    def killed(_report: Report) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "render", killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(first)
    assert pipeline.runs.record(first) is None
    assert [report.cut.cut_id for report in pipeline.run(second)] == [first.cut_id, second.cut_id]
    assert sorted(path.name for path in (pipeline.lake.root / "runs").iterdir()) == [first.cut_id, second.cut_id]


def test_the_first_of_two_equal_counts_is_kept(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = pipeline.land("a")
    other = Checked(_breaks(pipeline.lake.read(pipeline.spark, "payments", []).limit(0)), {"seen": 7}, {"ledger": 2})
    monkeypatch.setattr(balances, "check", lambda _night, _currencies: other)
    [report] = pipeline.run(cut)
    assert report.figures["seen"] == 1
    assert report.in_flight == {"ledger": 3}


def test_a_cut_that_has_not_landed_needs_brokers(pipeline: Pipeline) -> None:
    cut = pipeline.land("a")
    other = Pipeline(pipeline.spark, pipeline.lake.root / "elsewhere")
    with pytest.raises(LakeError, match="name the brokers"):
        other.run(cut)


def test_an_explained_break_stays_open_and_the_verdict_is_explained(pipeline: Pipeline) -> None:
    first = pipeline.land("a")
    [found] = pipeline.run(first)
    [entry] = register.entries(pipeline.runs, first)
    assert (found.verdict, found.breaks.listed[0].break_id) == (BREAKS_VERDICT, entry.break_id)
    at_ms = first.taken_at_ms + 7
    register.explain(pipeline.lake.root, entry.break_id, entry.detail, by="ann", at_ms=at_ms, reason="known")
    pipeline.finds = 0
    second = pipeline.land("b", explanations=register.head_of(pipeline.lake.root))
    [report] = pipeline.run(second)
    assert (report.verdict, report.breaks.total, report.breaks.listed) == (EXPLAINED, 0, ())
    [shown] = report.breaks.explained
    assert (shown.break_id, shown.opened_in, shown.explained) == (
        entry.break_id,
        1,
        Explained("ann", "2026-01-05T08:00:00.007Z", "known"),
    )
    # An explanation accounts for one break
    pipeline.finds = 1
    [report] = pipeline.run(pipeline.land("c", explanations=register.head_of(pipeline.lake.root)))
    assert (report.verdict, report.breaks.total, len(report.breaks.explained)) == (BREAKS_VERDICT, 1, 1)
    assert report.breaks.by_kind["missing"] == 1
    # The run over the first cut does not know what was explained later
    assert pipeline.run(first) == [found]


@full
def test_a_break_of_a_former_version_stays_open(pipeline: Pipeline) -> None:
    """Its runs had no register, and its breaks fewer columns."""
    first = pipeline.land("a", version=1)
    pipeline.run(first)
    (pipeline.lake.cut_directory(first) / "evidence.json").unlink()
    directory = pipeline.runs.directory(first)
    path = directory / "run.json"
    record = json.loads(path.read_bytes())
    record["frames"].pop("carry/register")
    rows = pipeline.spark.read.parquet(f"file://{directory}/breaks/all").select(*BREAKS.fieldNames()[:7])
    rows = rows.localCheckpoint()
    shutil.rmtree(directory / "breaks" / "all")
    rows.coalesce(1).write.parquet(f"file://{directory}/breaks/stand-in")
    [part] = (directory / "breaks" / "stand-in").glob("part-*.parquet")
    part.rename(part.with_name("00000.parquet"))
    size_bytes, sha256 = measure(part.with_name("00000.parquet"))
    file = {"path": "breaks/stand-in/00000.parquet", "size_bytes": size_bytes, "sha256": sha256}
    record["frames"]["breaks/stand-in"] = {**record["frames"].pop("breaks/all"), "files": [file]}
    path.write_text(json.dumps(record))
    pipeline.finds = 0
    [report] = pipeline.run(pipeline.land("b"))
    [listed] = report.breaks.listed
    assert (listed.payment_id, listed.opened_in, report.breaks.opened) == ("a", 1, 0)


def test_what_is_in_flight_is_late_after_some_cuts_and_an_hour(pipeline: Pipeline) -> None:
    cuts = [pipeline.land(name) for name in "abcde"]
    hours = [
        structs.replace(cut, taken_at_ms=cut.taken_at_ms + number * LATE_MIN_MS) for number, cut in enumerate(cuts)
    ]
    assert cuts[-1].settings.late_after_cuts == 3
    assert first_late(cuts[-1], cuts) is None
    assert first_late(hours[-1], hours) == hours[1]
    assert first_late(hours[2], hours[:3]) is None
    close = [*hours[:-1], structs.replace(hours[-1], taken_at_ms=hours[1].taken_at_ms + 1)]
    assert first_late(close[-1], close) == close[0]
