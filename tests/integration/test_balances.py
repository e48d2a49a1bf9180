"""The view as a process, on real brokers and both databases: its content and its refusals."""

import json
import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, update

from deploy.drills.clients.tools import admin_tool
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from services.balances.projection import database
from services.balances.projection.lag import KNOWN_MS
from shared.eos.errors import EXIT_FENCED
from shared.eos.records import Output
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.client.reader import end_offsets, group_offsets, stable_offsets
from shared.settings import EXIT_CONFIG
from tests.harness import ROOT, Service, cluster, eventually, settled, wait_until
from tests.postgres import Postgres
from tests.tiers import full
from tests.view_flow import assert_view_is_the_topic, flowing, folded, held, wait_caught_up

pytestmark = pytest.mark.timeout(180)

TRANSACTION_MS_MAX = 60_000  # the brokers' maximum: a Faust process starts slowly


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: its records are not a ledger's."""
    with cluster(tmp_path_factory.mktemp("view-kafka")) as running:
        yield running


@pytest.fixture
def corrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for one test, which corrupts a topic."""
    with cluster(tmp_path_factory.mktemp("corrupted-kafka")) as running:
        yield running


@pytest.fixture
def brokers(kafka: LocalKafka) -> str:
    return kafka.bootstrap_servers


def view(brokers: str, directory: Path, url: URL, instance: str = "0", **settings: str) -> Service:
    """Make an instance of the view without starting it."""
    return Service(
        "balances",
        brokers,
        directory,
        instance,
        VIEW_DATABASE=url.render_as_string(hide_password=False),
        VIEW_PORT=str(free_ports(1)[0]),
        **settings,
    )


def asked(service: Service, path: str) -> Any:
    """Request a path from the instance's JSON API."""
    port = service.process.env["ONCE_VIEW_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def rebuild(service: Service) -> None:
    """Run `--rebuild` with an instance's settings."""
    environment = {**os.environ, **service.process.env}
    words = [*service.process.argv, "--rebuild"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def plain_faust(brokers: str, group: str) -> set[tuple[int, int]]:
    """Return the coordinates that Faust shows with its defaults."""
    words = [sys.executable, "-m", "tests.plain_faust", "show", brokers, group, "0"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return {(partition, offset) for partition, offset in json.loads(done.stdout)["seen"]}


async def test_aborted_and_open_transactions_never_show_although_plain_faust_shows_them(
    brokers: str, tmp_path: Path, view_url: URL
) -> None:
    service = view(brokers, tmp_path, view_url).start()
    try:
        async with flowing(brokers) as flow, flowing(brokers, seed=2, timeout_ms=TRANSACTION_MS_MAX) as other:
            outputs = flow.some(10)
            await flow.write(outputs, commit=False)
            await flow.write(outputs)
            service.wait_ready()
            await wait_caught_up(brokers, view_url)
            stable = await stable_offsets(brokers, [LEDGER_POSTINGS])
            async with other.opened(other.some(10)):
                shown = plain_faust(brokers, f"plain-{tmp_path.name}")
                found, at = held(view_url)
                expected, _ = await folded(brokers)
        # The control: without read_committed, records of aborted and open transactions show
        entries = {(partition, offset) for partition, offset, _ in found.entries}
        uncommitted = {(number, offset) for number, offset in shown if offset >= stable[LEDGER_POSTINGS, number]}
        assert len(shown - uncommitted) >= sum(expected.events.values()) + len(outputs)
        assert uncommitted
        assert entries < shown
        assert found == expected
        assert at == {number: offset for (_, number), offset in stable.items()}
    finally:
        assert service.process.terminate() == 0


async def test_it_is_ready_with_its_partitions_and_reports_its_freshness(
    brokers: str, tmp_path: Path, view_url: URL
) -> None:
    async with flowing(brokers) as flow:
        await flow.pour(3)
        service = view(brokers, tmp_path, view_url).start().wait_ready()
        try:
            await flow.pour(3)
            await wait_caught_up(brokers, view_url)
            # Each partition ends with a marker, which is not lag
            wait_until(lambda: asked(service, "/api/freshness")["caught_up"] is True, "caught up", 10)
            assert 0 <= asked(service, "/api/freshness")["seconds_behind"] < KNOWN_MS / 1000
            assert 0 <= service.metric("once_view_behind_seconds") < KNOWN_MS / 1000
            assert service.metric("kafka_consumer_records_lag") == 0
            assert service.metric("kafka_consumer_assigned_partitions") == 6
            assert service.metric("kafka_consumer_records_consumed_total") > 0
            assert service.metric("once_view_begun_anew_total") == 0
            totals = asked(service, "/api/totals")
            assert totals["conserved"] is True

            # The group's offsets follow the database, so that monitors see its lag
            async def committed() -> bool:
                ends = await stable_offsets(brokers, [LEDGER_POSTINGS])
                expected = {number: end for (_, number), end in ends.items() if end}
                return await group_offsets(brokers, "balances", LEDGER_POSTINGS) == expected

            await eventually(committed, "the group's offsets committed", 10)
        finally:
            assert service.process.terminate() == 0


async def test_a_posting_that_is_written_twice_counts_once_across_a_restart(
    brokers: str, tmp_path: Path, view_url: URL
) -> None:
    """Brokers may commit a part of a transaction that is then processed again."""
    async with flowing(brokers) as flow:
        outputs = flow.some(10)
        await flow.write(outputs)
        service = view(brokers, tmp_path, view_url).start().wait_ready()
        try:
            await wait_caught_up(brokers, view_url)
            before, _ = held(view_url)
            known = (await folded(brokers))[0].repeats  # repeats from the other database's test
            wait_until(lambda: service.metric("once_source_repeats_total") == known, "repeats counted", 10)
            await flow.write(outputs[:3])
            await wait_caught_up(brokers, view_url)
            assert held(view_url)[0] == before
            wait_until(lambda: service.metric("once_source_repeats_total") == known + 3, "repeats counted", 10)
            assert "repeats ignored: their sources were processed already" in service.process.log_tail()
        finally:
            assert service.process.terminate() == 0

        await flow.write(outputs[3:])
        service = view(brokers, tmp_path, view_url).start().wait_ready()
        try:
            await wait_caught_up(brokers, view_url)
            assert held(view_url)[0] == before
            wait_until(lambda: service.metric("once_source_repeats_total") == len(outputs) - 3, "repeats counted", 10)
            await flow.pour(2)
            await wait_caught_up(brokers, view_url)
            assert (await assert_view_is_the_topic(brokers, view_url)).entries != before.entries
            rebuild(service)
            wait_until(lambda: service.metric("once_view_begun_anew_total") == 1, "rebuilt", 30)
            await wait_caught_up(brokers, view_url)
            await assert_view_is_the_topic(brokers, view_url)
        finally:
            assert service.process.terminate() == 0


@full
async def test_a_rebuild_makes_the_same_view_again_while_it_runs(brokers: str, tmp_path: Path, view_url: URL) -> None:
    async with flowing(brokers) as flow:
        await flow.pour(5)
    service = view(brokers, tmp_path, view_url).start().wait_ready()
    try:
        await wait_caught_up(brokers, view_url)
        before = held(view_url)
        rebuild(service)
        # No new record arrives: the view must notice by itself
        wait_until(lambda: service.metric("once_view_begun_anew_total") >= 1, "noticed", 20)
        await wait_caught_up(brokers, view_url)
        assert held(view_url) == before
        await assert_view_is_the_topic(brokers, view_url)
    finally:
        assert service.process.terminate() == 0


@full
async def test_the_view_of_another_cluster_is_rebuilt(brokers: str, tmp_path: Path, view_url: URL) -> None:
    async with flowing(brokers) as flow:
        await flow.pour(2)
    service = view(brokers, tmp_path, view_url).start().wait_ready()
    await wait_caught_up(brokers, view_url)
    assert service.process.terminate() == 0
    engine = database.writing(view_url)
    with engine.begin() as connection:
        connection.execute(update(database.view).values(cluster_id="another"))
        connection.execute(update(database.balances).values(balance_minor=7))
    engine.dispose()

    service.start().wait_ready()
    try:
        await wait_caught_up(brokers, view_url)
        assert any("cluster another" in str(line.get("reason")) for line in service.log())
        await assert_view_is_the_topic(brokers, view_url)
    finally:
        assert service.process.terminate() == 0


@full
async def test_a_view_ahead_of_the_topic_is_refused(brokers: str, tmp_path: Path, view_url: URL) -> None:
    service = view(brokers, tmp_path, view_url).start().wait_ready()
    assert service.process.terminate() == 0
    engine = database.writing(view_url)
    with engine.begin() as connection:
        connection.execute(update(database.positions).values(next_offset=10_000_000))
    engine.dispose()

    service.start()
    assert service.wait_exit() == EXIT_CONFIG
    reasons = [str(line["reason"]) for line in service.log() if line["event"] == "settings refused"]
    assert "more than the topic" in reasons[0]
    assert "--rebuild" in reasons[0]


@full
async def test_unreadable_or_expired_records_stop_the_view_and_are_not_skipped(
    corrupted: LocalKafka, tmp_path: Path, view_url: URL
) -> None:
    brokers = corrupted.bootstrap_servers
    async with flowing(brokers) as flow:
        await flow.pour(2)
        await eventually(lambda: settled(brokers, [LEDGER_POSTINGS]), "markers written")
        where = (await end_offsets(brokers, [LEDGER_POSTINGS]))[LEDGER_POSTINGS, 3]
        await flow.write([Output(LEDGER_POSTINGS, 3, None, b"no event", ())])
        await flow.pour(2)
    for _ in range(2):
        service = view(brokers, tmp_path, view_url).start()
        assert service.wait_exit() == EXIT_FENCED
        [fatal] = [line for line in service.log() if line["event"] == "fatal"]
        assert f"{LEDGER_POSTINGS}:3:{where}: " in str(fatal["reason"])
        assert held(view_url)[1][3] <= where

    await eventually(lambda: settled(brokers, [LEDGER_POSTINGS]), "markers written")
    ends = await end_offsets(brokers, [LEDGER_POSTINGS])
    wanted = [{"topic": LEDGER_POSTINGS, "partition": 3, "offset": ends[LEDGER_POSTINGS, 3] - 1}]
    (tmp_path / "offsets.json").write_text(json.dumps({"version": 1, "partitions": wanted}))
    chosen = ("--offset-json-file", str(tmp_path / "offsets.json"))
    await admin_tool(corrupted, "org.apache.kafka.tools.DeleteRecordsCommand", *chosen)
    service = view(brokers, tmp_path, view_url).start()
    assert service.wait_exit() == EXIT_CONFIG
    [refused] = [str(line["reason"]) for line in service.log() if line["event"] == "settings refused"]
    assert f"its log begins at {wanted[0]['offset']}" in refused


@full
async def test_a_restarted_database_only_delays_the_view(brokers: str, tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create(f"restarted-{tmp_path.name}")
    service = view(brokers, tmp_path, url).start().wait_ready()
    try:
        async with flowing(brokers) as flow:
            for _ in range(3):
                await flow.pour(3)
                postgres.kill()
                await flow.pour(3)
                wait_until(lambda: "database" in service.not_ready_reasons(), "not ready", 20)
                postgres.start()
                wait_until(lambda: service.ready, "ready again", 20)
        await wait_caught_up(brokers, url)
        await assert_view_is_the_topic(brokers, url)
        assert service.metric("once_view_database_retries_total") >= 3
    finally:
        assert service.process.terminate() == 0


@full
async def test_a_dead_broker_only_delays_the_view(replicated: LocalKafka, tmp_path: Path, view_url: URL) -> None:
    brokers = replicated.bootstrap_servers
    # The cluster fences a dead broker after 3 s: a session as short would end too
    service = view(brokers, tmp_path, view_url, SESSION_TIMEOUT_MS="15000").start().wait_ready()
    try:
        async with flowing(brokers) as flow:
            for broker in (1, 2):
                replicated.processes[broker].kill()
                try:
                    await flow.pour(3)
                    await wait_caught_up(brokers, view_url)
                finally:
                    replicated.processes[broker].start()
                    replicated.wait_in_sync()
                await flow.pour(3)
        await wait_caught_up(brokers, view_url)
        await assert_view_is_the_topic(brokers, view_url)
    finally:
        assert service.process.terminate() == 0


@full
async def test_an_instance_whose_id_joins_again_stops_for_a_restart(
    brokers: str, tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create(f"twice-{tmp_path.name}")
    first = view(brokers, tmp_path, url).start().wait_ready()
    second = view(brokers, tmp_path, url).start().wait_ready()
    try:
        assert first.wait_exit() == EXIT_FENCED
        [fenced] = [str(line["reason"]) for line in first.log() if line["event"] == "fenced"]
        assert "the group removed this member" in fenced
        async with flowing(brokers) as flow:
            await flow.pour(2)
        await wait_caught_up(brokers, url)
    finally:
        first.process.kill()
        assert second.process.terminate() == 0


@full
async def test_invalid_settings_and_databases_are_refused(brokers: str, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE accounts (owner TEXT)")
    for settings, reason in (
        ({"VIEW_DATABASE": "mysql://db/view"}, "set ONCE_VIEW_DATABASE to"),
        ({"VIEW_DATABASE": f"sqlite:///{foreign}"}, "name an empty database in ONCE_VIEW_DATABASE"),
        ({"CRASH_POINT": "nowhere=kill:1"}, "is not a crash point"),
    ):
        service = Service("balances", brokers, tmp_path, **{"VIEW_PORT": "0"} | settings).start()
        assert service.wait_exit() == EXIT_CONFIG
        [refused] = [str(line["reason"]) for line in service.log() if line["event"] == "settings refused"]
        assert reason in refused
