"""The runs that a night must make, and the cut that a request means."""

import hashlib
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from deploy import reconciliation
from deploy.cli import reconcile as command
from deploy.reconciliation import (
    Request,
    brokers_for_spark,
    cut_of_day,
    cuts_due,
    cuts_up_to,
    reconcile_cut,
    settings_of,
)
from shared.events.catalogue import REFERENCE_TOPICS
from shared.events.operations import RunOutcome
from shared.kafka.client.access import Access, Tls
from shared.settings import ReconcileSettings, SettingsError, load
from spark.evidence import evidence_of
from spark.job import EXIT_BREAKS, EXIT_CLEAN, EXIT_FAILED, EXIT_UNFINISHED, exit_code, unfinished
from spark.lake import Lake, LakeError
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, Settings, encode, joined, seal
from spark.metrics import Progress
from spark.nightly import Work, covered, due, is_landed, progress_text, time_left_s
from spark.report import Report, Totals, breaks_of, report_of
from spark.session import connection
from spark.staging import Staging

DAY_MS = 86_400_000


def chain(count: int) -> list[Manifest]:
    """Return cuts of one cluster, two on each day."""
    cuts: list[Manifest] = []
    for number in range(count):
        previous = cuts[-1].digest if cuts else ""
        ranges = {0: Range(number * 10, number * 10 + 10, number * 10 + 10)}
        topics = dict.fromkeys(LANDED_TOPICS, ranges)
        groups = {group: {0: number * 10 + 10} for group in INPUTS}
        taken_at_ms = number * DAY_MS // 2
        cuts.append(seal(Manifest(1, number + 1, taken_at_ms, "cluster", topics, groups, True, previous)))
    return cuts


CUTS = chain(4)


def sequences(manifests: list[Manifest]) -> list[int]:
    return [manifest.sequence for manifest in manifests]


@pytest.mark.parametrize(
    ("complete", "wanted", "expected"),
    [
        ({1, 2, 3}, 4, [4]),
        ({1, 2}, 4, [3, 4]),
        (set(), 4, [1, 2, 3, 4]),
        ({2}, 4, [3, 4]),
        ({1, 2, 3, 4}, 4, [4]),
        ({1, 2, 3, 4}, 2, [2]),
        ({3, 4}, 2, [1, 2]),
        (set(), 1, [1]),
    ],
)
def test_missing_runs_are_made_first(complete: set[int], wanted: int, expected: list[int]) -> None:
    runs = due(CUTS, CUTS[wanted - 1], lambda cut: cut.sequence in complete)
    assert sequences(runs) == expected
    assert all(run in CUTS for run in runs)


@pytest.mark.parametrize(
    ("number", "runs", "elapsed_s", "text"),
    [
        (1, 1, 0.0, "reconciling cut {}"),
        (1, 17, 0.0, "run 1 of 17, cut {}"),
        (3, 17, 30.0, "run 3 of 17, cut {}, about 4 min left"),  # 15 more, of 15 s each
        (16, 17, 600.0, "run 16 of 17, cut {}, about 80 s left"),
        (17, 17, 0.0, "run 17 of 17, cut {}, about 1 s left"),
    ],
)
def test_progress_names_the_run_and_the_time_left(number: int, runs: int, elapsed_s: float, text: str) -> None:
    assert progress_text(number, runs, CUTS[0], time_left_s(elapsed_s, number, runs)) == text.format(CUTS[0].cut_id)


def test_the_time_left_is_of_the_runs_that_will_be_made() -> None:
    assert time_left_s(0.0, 1, 5) is None
    assert time_left_s(20.0, 3, 5) == 30.0


def test_runs_that_are_left_have_an_exit_code_of_their_own() -> None:
    assert [exit_code(verdict, 0) for verdict in ("clean", "explained", "breaks")] == [EXIT_CLEAN, 0, EXIT_BREAKS]
    assert {exit_code(verdict, 3) for verdict in ("clean", "explained", "breaks")} == {EXIT_UNFINISHED} == {75}
    assert unfinished(5, 12) == "made 5 of 17 runs that are due, 12 left: run it again to go on"


def test_a_full_run_needs_none_before_it() -> None:
    expected = [joined(CUTS[:3])]
    assert due(CUTS, CUTS[2], lambda _: False, full=True) == expected
    assert due(CUTS, joined(CUTS[:3]), lambda _: False) == expected
    assert due(CUTS, CUTS[0], lambda _: False, full=True) == [CUTS[0]]


def test_a_manifest_is_known_when_it_is_a_cut_or_made_of_cuts() -> None:
    assert is_landed(CUTS, CUTS[3])
    assert is_landed(CUTS, joined(CUTS))
    assert not is_landed(CUTS[:3], CUTS[3])
    assert not is_landed(CUTS[:2], joined(CUTS[:3]))
    assert not is_landed([], CUTS[0])
    assert not is_landed(CUTS, seal(msgspec.structs.replace(CUTS[1], taken_at_ms=1)))


def test_a_run_reads_its_cut_as_new_and_those_before_as_history() -> None:
    assert covered(CUTS, CUTS[2]) == ([CUTS[2]], CUTS[:2])
    assert covered(CUTS, CUTS[0]) == ([CUTS[0]], [])
    assert covered(CUTS, joined(CUTS[:3])) == (CUTS[:3], [])


@pytest.mark.parametrize("cuts", [[], CUTS[:2], chain(1)])
def test_a_run_over_cuts_that_have_not_landed_is_refused(cuts: list[Manifest]) -> None:
    with pytest.raises(LakeError, match="has not landed here"):
        covered(cuts, CUTS[2])


def test_a_day_means_its_last_cut() -> None:
    assert cut_of_day(CUTS, date(1970, 1, 1)) == CUTS[1]
    assert cut_of_day(CUTS, date(1970, 1, 2)) == CUTS[3]
    with pytest.raises(LakeError, match="1970-01-03; days with one: 1970-01-01, 1970-01-02"):
        cut_of_day(CUTS, date(1970, 1, 3))


def test_tables_are_shown_up_to_a_cut_by_its_name_number_or_day() -> None:
    for name, last in ((CUTS[1].cut_id, 1), ("3", 2), ("1970-01-01", 1)):
        assert cuts_up_to(CUTS, name) == CUTS[: last + 1]
    for name in ("9", "unknown", "1970-01-03"):
        with pytest.raises(LakeError, match="cut"):
            cuts_up_to(CUTS, name)


def test_spark_connects_with_the_same_files_as_the_command() -> None:
    brokers = "127.0.0.1:9092"
    assert connection(brokers_for_spark(brokers)) == {"kafka.bootstrap.servers": brokers}
    assert connection(brokers_for_spark(Access(brokers))) == {"kafka.bootstrap.servers": brokers}
    assert connection(brokers_for_spark(Access(brokers, Tls("ca.pem", "own.pem")))) == {
        "kafka.bootstrap.servers": brokers,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "own.pem",
    }


class Cluster:
    """Stand-ins for the looks at a cluster.

    Attributes:
        lost: partitions of which records are gone.
    """

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.kept_ms = 5
        self.taken: list[Manifest] = []

    async def gone(self, _brokers: str, _cut: Manifest) -> list[str]:
        return self.lost

    async def compaction_lag_ms(self, _brokers: str, topics: Iterable[str]) -> int:
        assert tuple(topics) == REFERENCE_TOPICS
        return self.kept_ms

    async def take_cut(self, _brokers: str, previous: Manifest | None, **pinned: Any) -> Manifest:
        blank = chain(1)[0] if previous is None else CUTS[previous.sequence]
        taken = msgspec.structs.replace(
            blank,
            version=VERSION,
            taken_at_ms=pinned["now_ms"],
            previous="" if previous is None else previous.digest,
            settings=pinned["settings"],
            evidence=pinned["evidence"],
        )
        self.taken.append(seal(taken))
        return self.taken[-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(reconciliation, "gone", made.gone)
    monkeypatch.setattr(reconciliation, "compaction_lag_ms", made.compaction_lag_ms)
    monkeypatch.setattr(reconciliation, "take_cut", made.take_cut)
    return made


def landed(lake: Lake, cut: Manifest) -> None:
    """Land a cut without rows."""
    Staging(lake, cut).publish({})


def test_a_night_after_one_that_failed_lands_the_same_cut_and_takes_another(tmp_path: Path, cluster: Cluster) -> None:
    lake, said = Lake(tmp_path), list[str]()
    [first] = cuts_due(lake, "any", Request(), Settings(records_max=7), say=said.append)
    assert (first.settings, first.evidence.landed) == (Settings(records_max=7, superseded_kept_ms=5), "")
    Staging(lake, first)  # the landing begins, and is killed
    due = cuts_due(lake, "any", Request(), say=said.append)
    assert next(due) == first
    assert len(cluster.taken) == 1
    landed(lake, first)
    [second] = due
    assert (second.previous, second.evidence) == (first.digest, evidence_of(lake, [first]))
    assert second.evidence.landed != ""
    assert said == []


def test_a_bounded_backfill_comes_before_a_new_cut(tmp_path: Path, cluster: Cluster) -> None:
    lake = Lake(tmp_path)
    for cut in CUTS[:3]:
        landed(lake, cut)
    cuts = cuts_due(lake, "any", Request(runs_max=2), say=print)
    assert next(cuts) == CUTS[2]
    assert cluster.taken == []
    assert next(cuts) == cluster.taken[0]
    assert list(cuts_due(lake, "any", Request(), say=print)) == cluster.taken[1:]  # without a bound, it lands first
    assert list(cuts_due(lake, "any", Request(runs_max=2, day=date(1970, 1, 1)), say=print)) == [CUTS[1]]


class Reconciler:
    """Runs that are made without Spark: of each cut, `due` are due."""

    def __init__(self, due: list[int]) -> None:
        self.due = due
        self.allowed: list[int | None] = []

    def __call__(self, *arguments: Any, **_options: object) -> Work:
        request = arguments[-1]
        self.allowed.append(request.runs_max)
        runs = self.due[len(self.allowed) - 1]
        made = runs if request.runs_max is None else min(runs, request.runs_max)
        return Work(cast("list[Report]", ["report"] * made), runs - made)


@pytest.mark.parametrize(
    ("runs_max", "due_runs", "allowed", "made", "left"),
    [
        (None, [2, 1], [None, None], 3, 0),
        (2, [5], [2], 2, 3),
        (4, [2, 1], [4, 2], 3, 0),
        (2, [2], [2], 2, 1),  # the new cut was not taken
    ],
)
def test_a_command_makes_as_many_runs_as_are_allowed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs_max: int | None,
    due_runs: list[int],
    allowed: list[int | None],
    made: int,
    left: int,
) -> None:
    lake, reconciler = Lake(tmp_path), Reconciler(due_runs)
    landed(lake, CUTS[0])
    monkeypatch.setattr(command, "reconcile_cut", reconciler)
    spark, access = cast("SparkSession", None), Access("any")
    found = command.reconcile_cuts(spark, lake, access, iter(CUTS[:2]), Request(runs_max=runs_max))
    assert (len(found.reports), found.left, reconciler.allowed) == (made, left, allowed)


def report_of_cut(cut: Manifest, verdict: str) -> Report:
    sums = Totals("digest", (), (), ())
    made = report_of(cut, {}, {}, breaks_of([], [], ["missing"], 0), sums)
    return msgspec.structs.replace(made, verdict=verdict)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunOutcome]:
    """Outcomes of runs that are made without Spark, in a lake with all cuts."""
    lake, found = Lake(tmp_path), list[RunOutcome]()
    for cut in CUTS:
        landed(lake, cut)

    def work(*arguments: Any, progress: Progress, **_options: object) -> Work:
        """Make a run without Spark: of the first cut a clean one, of the second one with breaks."""
        cut = arguments[2]
        folder = lake.root / "runs" / cut.cut_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(f"stored {cut.sequence}")
        made = report_of_cut(cut, "clean" if cut == CUTS[0] else "breaks")
        progress.made(made)
        return Work([made], 0)

    async def publish(_brokers: str, outcome: RunOutcome) -> None:
        found.append(outcome)

    monkeypatch.setattr(reconciliation, "work", work)
    monkeypatch.setattr(reconciliation, "_publish", publish)
    monkeypatch.setattr(reconciliation, "validate_time_zone", lambda _spark, _cut: None)
    return found


def reconciled(lake: Lake, cut: Manifest, textfile: Path) -> list[str]:
    """Make the run over a cut; return what was said."""
    said: list[str] = []
    reconcile_cut(cast("SparkSession", None), lake, "any", cut, Request(textfile=textfile), say=said.append)
    return said


def test_an_earlier_cut_that_is_run_again_changes_no_current_verdict(
    tmp_path: Path, published: list[RunOutcome]
) -> None:
    lake, said = Lake(tmp_path), list[str]()
    for cut in (CUTS[0], CUTS[1], CUTS[0], CUTS[1]):
        said += reconciled(lake, cut, tmp_path / "once.prom")
        sequence = f"once_reconcile_cut_sequence {float(max(one.cut_id for one in published)[:6])}"
        assert sequence in (tmp_path / "once.prom").read_text().splitlines()
        assert (lake.root / "runs" / cut.cut_id / "metrics.prom").exists()
    first, second = (hashlib.sha256(f"stored {number}".encode()).hexdigest() for number in (1, 2))
    outcomes = [(one.cut_id, one.verdict, one.report) for one in published]
    newest = (CUTS[1].cut_id, "breaks", second)
    assert outcomes == [(CUTS[0].cut_id, "clean", first), newest, newest]
    assert f"a later cut has a run: the verdict of cut {CUTS[0].cut_id} is not published" in said


@pytest.mark.parametrize(
    ("name", "newest"),
    [
        (joined(CUTS).cut_id, False),  # a full run
        (f"{CUTS[1].cut_id}.damaged-1", False),
        (f"{CUTS[0].cut_id}.damaged-1", True),
        (f"{CUTS[1].cut_id}.differs", True),  # never published
        (f".{CUTS[1].cut_id}", True),  # killed on the way
    ],
)
def test_a_run_over_later_cuts_counts_when_it_is_full_or_was_set_aside(
    tmp_path: Path, published: list[RunOutcome], name: str, newest: bool
) -> None:
    (tmp_path / "runs" / name).mkdir(parents=True)
    reconciled(Lake(tmp_path), CUTS[0], tmp_path / "once.prom")
    assert [one.cut_id for one in published] == ([CUTS[0].cut_id] if newest else [])
    assert (tmp_path / "once.prom").exists() is newest


def test_metrics_that_cannot_be_written_fail_the_run_and_withhold_no_verdict(
    tmp_path: Path, published: list[RunOutcome]
) -> None:
    (tmp_path / "collector").write_text("a file, not a folder")
    with pytest.raises(OSError, match="collector"):
        reconciled(Lake(tmp_path), CUTS[1], tmp_path / "collector" / "once.prom")
    assert [(one.cut_id, one.verdict) for one in published] == [(CUTS[1].cut_id, "breaks")]


def test_a_command_without_brokers_could_not_make_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE_DIR", str(tmp_path / "stack"))
    monkeypatch.delenv("ONCE_BOOTSTRAP_SERVERS", raising=False)
    done = CliRunner().invoke(command.reconcile, ["--lake", str(tmp_path / "lake")])
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert done.stderr.startswith("once: no cluster")


def test_a_cut_whose_records_are_gone_gives_way_to_a_new_one(tmp_path: Path, cluster: Cluster) -> None:
    lake, said = Lake(tmp_path), list[str]()
    [first] = cuts_due(lake, "any", Request(), say=said.append)
    Staging(lake, first)
    cluster.lost = ["effects.requests:3"]
    [second] = cuts_due(lake, "any", Request(), say=said.append)
    assert (second.sequence, len(cluster.taken)) == (1, 2)
    assert lake.pending() is None
    assert said == [
        f"cut {first.cut_id} cannot be landed any more: records of effects.requests:3 are gone; taking another"
    ]


def test_a_request_for_a_certain_cut_leaves_a_pending_one_alone(tmp_path: Path, cluster: Cluster) -> None:
    lake = Lake(tmp_path)
    landed(lake, CUTS[0])
    Staging(lake, CUTS[1])
    for request in (Request(day=date(1970, 1, 1)), Request(full=True), Request(manifest=tmp_path / "cut.json")):
        (tmp_path / "cut.json").write_bytes(encode(CUTS[0]))
        assert list(cuts_due(lake, "any", request, say=print)) == [CUTS[0]]
    assert lake.pending() == CUTS[1]
    assert cluster.taken == []


def test_the_settings_of_a_cut_come_from_the_environment() -> None:
    assert settings_of(load(ReconcileSettings, {})) == Settings()
    chosen = {
        "ONCE_INGEST_WINDOW": "5",
        "ONCE_LEDGER_REVERSAL_WINDOW": "8",
        "ONCE_RECONCILE_LATE_AFTER_CUTS": "6",
        "ONCE_RECONCILE_RECORDS_MAX": "7",
        "ONCE_RECONCILE_TIME_ZONE": "Europe/Prague",
    }
    assert settings_of(load(ReconcileSettings, chosen)) == Settings(
        identity_window=5, reversal_window=8, late_after_cuts=6, records_max=7, time_zone="Europe/Prague"
    )


@pytest.mark.parametrize("zone", ["", "Europe/Pragu", "posix/Europe/Prague", "../Europe/Prague", "+02:00"])
def test_a_time_zone_that_is_not_known_is_refused(zone: str) -> None:
    with pytest.raises(SettingsError, match="ONCE_RECONCILE_TIME_ZONE is"):
        settings_of(load(ReconcileSettings, {"ONCE_RECONCILE_TIME_ZONE": zone}))
