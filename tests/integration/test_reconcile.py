"""`once reconcile` as an operator runs it: figures, identical bytes, breaks and failures."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from click.testing import CliRunner

from deploy.cli.breaks import breaks
from deploy.cli.sql import sql
from deploy.drills.few_rows import for_few_rows
from deploy.local.kafka.cluster import LocalKafka
from services.balances.dashboard.evidence import Fencing, Rest
from services.balances.dashboard.invariants import Judged, judge
from services.balances.dashboard.snapshot import Standing
from services.monitor.domain import Picture, last_run
from services.monitor.service import READINGS
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW, RECONCILIATION_RUNS
from shared.events.operations import RunOutcome, decode_run_outcome
from shared.http.monitor import Run
from shared.kafka.client.reader import read_topics
from shared.telemetry.catalogue import RECONCILE_CLEAN
from spark.lake import Lake
from spark.manifest import encode
from tests.harness import ROOT, cluster
from tests.live import seen
from tests.pipeline.worlds import Volume
from tests.queries import RULES, promtool
from tests.topics import Topics
from tests.world import Trail

pytestmark = pytest.mark.timeout(900)

UNREACHABLE = "127.0.0.1:1"


class Done(NamedTuple):
    """The result of a command."""

    code: int
    stdout: str
    stderr: str


SERVER = """
import json, sys
from click.testing import CliRunner
from deploy.cli.reconcile import reconcile
for line in sys.stdin:
    done = CliRunner().invoke(reconcile, json.loads(line))
    print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)
"""
"""Runs the command repeatedly in another process, so that Spark's JVM starts only once."""


class Operator:
    """A context that reconciles a cluster into its own lake.

    Attributes:
        said: the stderr of the process and of Spark within it.
    """

    def __init__(self, brokers: str, directory: Path) -> None:
        self.brokers = brokers
        self.lake = Lake(directory / "lake")
        self.textfile = directory / "collector" / "once.prom"
        self.said = directory / "stderr"

    def __enter__(self) -> Self:
        with self.said.open("wb") as said:
            self._server = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                env={
                    **os.environ,
                    "ONCE_SPARK_MEMORY": "1g",
                    "ONCE_RECONCILE_TEXTFILE": str(self.textfile),
                    **for_few_rows(self.said.with_name("conf")),
                },
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()

    def run(self, *words: str, code: int = 0) -> Done:
        """Run the command."""
        options = ["--lake", str(self.lake.root), "--bootstrap-servers", self.brokers]
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([*options, *words]), file=self._server.stdin, flush=True)
        done = Done(*json.loads(self._server.stdout.readline() or '[-1, "", "it ended"]'))
        assert done.code == code, f"{done.stderr}\n{done.stdout}\n{self.said.read_text()}"
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def files(self, cut_id: str) -> dict[str, bytes]:
        """Read the files that a repeated run must reproduce."""
        folder = self.lake.root / "runs" / cut_id
        return {name: (folder / name).read_bytes() for name in ("report.json", "report.html")}

    def outcomes(self) -> list[RunOutcome]:
        """Read reconciliation.runs, sorted by cut."""
        found: list[Record] = []
        asyncio.run(read_topics(self.brokers, [RECONCILIATION_RUNS], lambda _topic, _p, records: found.extend(records)))
        decoded = [(record.key, decode_run_outcome(record.value or b"")) for record in found]
        assert all(key == outcome.cut_id.encode() for key, outcome in decoded)
        return sorted((outcome for _, outcome in decoded), key=lambda outcome: outcome.cut_id)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: records must have the coordinates in the world."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.mark.full
def test_nights(brokers: LocalKafka, tmp_path: Path) -> None:
    world = Volume(rounds=2)
    topics = Topics(brokers.bootstrap_servers, world)
    asyncio.run(topics.write())
    with Operator(brokers.bootstrap_servers, tmp_path) as operator:
        first = check_a_first_night(operator, world)
        check_the_same_night_again(operator, first)
        world.round()
        lost = world.trails["plain"][-1]
        world.remove(lost.debit)
        asyncio.run(topics.write())
        check_a_night_with_breaks(operator, first, lost)
        check_a_break_stays_open_until_it_is_explained(operator, tmp_path, lost)
        assert operator.said.read_text() == ""


def check_a_first_night(operator: Operator, world: Volume) -> dict[str, Any]:
    """Check that a first run covers the whole topics and is clean."""
    report: dict[str, Any] = operator.json()
    assert (report["verdict"], report["full"], report["breaks"]["total"]) == ("clean", True, 0)
    raw = [records for (topic, _), records in world.logs.items() if topic == PAYMENTS_RAW]
    assert report["figures"]["records_in"] == sum(map(len, raw))
    assert json.loads(operator.files(report["cut"]["cut_id"])["report.json"]) == report
    assert "once_reconcile_clean 1.0" in operator.textfile.read_text().splitlines()
    return report


def check_the_same_night_again(operator: Operator, first: dict[str, Any]) -> None:
    """Check that the same manifest gives the same bytes, with only the report on stdout and progress on stderr."""
    cut_id = first["cut"]["cut_id"]
    kept = operator.files(cut_id)
    manifest = operator.lake.root / "cuts" / cut_id / "manifest.json"
    again = operator.run("--manifest", str(manifest), "--json")
    assert again.stdout.encode() == kept["report.json"]
    assert operator.files(cut_id) == kept
    assert [line for line in again.stderr.splitlines() if not line.startswith("reconcile: ")] == []


def check_a_night_with_breaks(operator: Operator, first: dict[str, Any], lost: Trail) -> None:
    """Check that the second night finds and reports the same breaks as one run over both nights."""
    shown = operator.run(code=1)
    assert "verdict: breaks" in shown.stdout
    assert f"missing {lost.transfer.topic}:{lost.transfer.partition}:{lost.transfer.offset}" in shown.stdout
    cut = operator.lake.cuts()[1]
    day = datetime.fromtimestamp(cut.taken_at_ms / 1000, UTC).date()
    kept = operator.files(cut.cut_id)
    second, full = operator.json("--day", str(day), code=1), operator.json("--full", code=1)
    assert encode(operator.lake.cuts()[1]) == encode(cut)
    assert operator.files(cut.cut_id) == kept
    assert (second["cut"]["cut_id"], second["full"], full["full"]) == (cut.cut_id, False, True)
    assert full["breaks"] == second["breaks"]
    assert full["totals"]["digest"] == second["totals"]["digest"]
    assert full["figures"]["records_in"] == first["figures"]["records_in"] + second["figures"]["records_in"]
    outcomes = operator.outcomes()
    assert {(one.cut_id, one.verdict) for one in outcomes} == {
        (first["cut"]["cut_id"], "clean"),
        (cut.cut_id, "breaks"),
        (full["cut"]["cut_id"], "breaks"),
    }
    assert {one.report for one in outcomes if one.cut_id == cut.cut_id} == {
        hashlib.sha256(operator.files(cut.cut_id)["report.json"]).hexdigest()
    }
    # The first night again: the last verdict stays the current one
    manifest = operator.lake.root / "cuts" / first["cut"]["cut_id"] / "manifest.json"
    assert operator.json("--manifest", str(manifest)) == first
    assert operator.outcomes() == outcomes
    assert "once_reconcile_clean 0.0" in operator.textfile.read_text().splitlines()


def check_a_break_stays_open_until_it_is_explained(operator: Operator, directory: Path, lost: Trail) -> None:
    """Check the night after, when nothing was repaired, and the night after an explanation, in all five places."""
    third = operator.json(code=1)
    assert (third["verdict"], third["breaks"]["opened"], third["breaks"]["closed"]) == ("breaks", 0, 0)
    missing = [one for one in third["breaks"]["listed"] if one["kind"] == "missing"]
    assert {(one["offset"], one["opened_in"]) for one in missing} >= {(lost.transfer.offset, 2)}
    check_places(operator, directory, "breaks")
    for one in third["breaks"]["listed"]:
        options = ["--lake", str(operator.lake.root), "--by", "ann", "--reason", "a test lost it"]
        assert CliRunner().invoke(breaks, ["explain", one["break_id"], *options]).exit_code == 0
    fourth = operator.json(code=0)
    assert (fourth["verdict"], fourth["breaks"]["total"]) == ("explained", 0)
    assert len(fourth["breaks"]["explained"]) == third["breaks"]["total"]
    assert fourth["totals"]["digest"] == third["totals"]["digest"]
    check_places(operator, directory, "explained")
    listed = CliRunner().invoke(breaks, ["list", "--lake", str(operator.lake.root), "--json"])
    assert {one["explained"]["by"] for one in json.loads(listed.stdout)["breaks"]} == {"ann"}
    [shown, *_] = json.loads(listed.stdout)["breaks"]
    history = CliRunner().invoke(breaks, ["show", shown["id"], "--lake", str(operator.lake.root)])
    assert [word for word in ("opened by", "explained by ann: a test lost it") if word not in history.stdout] == []
    check_tables_as_of(operator)
    for words, code in ((["show", "unknown"], 3), (["explain", "unknown", "--reason", "x"], 3)):
        assert CliRunner().invoke(breaks, [*words, "--lake", str(operator.lake.root)]).exit_code == code


def check_tables_as_of(operator: Operator) -> None:
    """Check that tables can be queried as they were at an earlier cut."""
    counts = [operator.lake.landed(cut).rows["payments"] for cut in operator.lake.cuts()]
    assert counts[0]
    assert counts[1]
    # In another process: one has one Spark at most
    command = [sys.executable, "-m", "deploy.cli.main", "sql", "SELECT count(*) AS n FROM payments", "--json"]
    options = ["--lake", str(operator.lake.root), "--as-of", operator.lake.cuts()[0].cut_id]
    asked = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == {"n": counts[0]}


def check_places(operator: Operator, directory: Path, verdict: str) -> None:
    """Check that metrics, alert, the view's page and the report agree with the verdict."""
    cut = operator.lake.cuts()[-1]
    report = json.loads(operator.files(cut.cut_id)["report.json"])
    page = operator.files(cut.cut_id)["report.html"].decode()
    assert report["verdict"] == verdict
    assert f'<div class="verdict {verdict}"' in page
    values = dict(line.rsplit(" ", 1) for line in operator.textfile.read_text().splitlines() if line[0] != "#")
    explained = len(report["breaks"]["explained"])
    assert float(values["once_reconcile_clean"]) == (verdict != "breaks")
    assert float(values['once_reconcile_stage_duration_seconds{stage="totals"}']) > 0
    assert float(values["once_reconcile_breaks_explained"]) == explained
    assert bool(float(values["once_reconcile_oldest_break_timestamp_seconds"])) == (verdict == "breaks")
    assert any(name.startswith("once_reconcile_at_risk") for name in values) == (verdict == "breaks")
    [outcome] = [one for one in operator.outcomes() if one.cut_id == cut.cut_id]
    [(_, clean)] = READINGS[RECONCILE_CLEAN](Picture(run=last_run(None, 1, outcome)))
    assert clean == (verdict != "breaks")
    light = next(one for one in judge(Judged(), seen(run=Run(1, outcome)), Rest(), Fencing(), 0)[1] if one.id == "I12")
    assert (light.standing is Standing.OK) == (verdict != "breaks")
    assert ("explained" in light.detail) == (verdict == "explained")
    assert fires(directory, float(values["once_reconcile_clean"])) == (verdict == "breaks")


def fires(directory: Path, clean: float) -> bool:
    """Whether ReconciliationNotClean fires when the last run has this metric."""
    series = {"once_reconcile_clean": clean, "once_reconcile_last_run_timestamp_seconds": 1}
    inputs = [
        {"series": name + '{job="monitor",instance="0"}', "values": f"{value}x9"} for name, value in series.items()
    ]
    test = {
        "interval": "1m",
        "input_series": inputs,
        "alert_rule_test": [
            {"eval_time": "5m", "alertname": "ReconciliationNotClean", "exp_alerts": []},
        ],
    }
    path = directory / "alert.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES / "reconciliation.yml")], "tests": [test]}))
    result = promtool("test", "rules", path)
    assert result.returncode == 0 or "alertname: ReconciliationNotClean" in result.stderr + result.stdout, result
    return result.returncode != 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--manifest", "{bad}"), "this is no manifest"),
        (("--day", "2026-01-05"), "no cut was taken on 2026-01-05; days with one: none"),
        ((), "no broker answers|does not answer|cannot be"),
    ],
)
def test_a_run_that_fails_exits_with_2_and_says_why(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with Operator(UNREACHABLE, tmp_path) as operator:
        done = operator.run(*(word.format(bad=bad) for word in words), code=2)
    assert done.stdout == ""
    [line] = [line for line in done.stderr.splitlines() if line.startswith("once: ")]
    assert any(text in line for text in message.split("|"))


def test_a_concurrent_run_is_refused(tmp_path: Path) -> None:
    with Operator(UNREACHABLE, tmp_path) as operator, operator.lake.lock():
        done = operator.run(code=2)
    assert "another run is at work" in done.stderr


def test_sql_without_a_landed_table_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(sql, ["SELECT 1", "--lake", str(tmp_path / "lake")])
    assert done.exit_code == 3
    assert "run `once reconcile` first" in done.stderr
