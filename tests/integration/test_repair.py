"""`once repair` after gaps that brokers make: lost parts of a transaction that no service completes.

A service is held inside its transactions, some parts get a COMMIT marker, the service is killed, and the group's offset
is set by hand. Its successor takes that for an operator's decision and completes nothing.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from shared.eos.errors import EXIT_FENCED
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.headers import REPAIR, header
from shared.events.operations import decode_repaired
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import group_offsets, read_topics, stable_offsets
from shared.kafka.client.requests import Request
from tests.harness import ROOT, cluster
from tests.integration.test_reconcile import Operator
from tests.outbox import world_over
from tests.partitions import PARTITIONS
from tests.proof import assert_exactly_once, verdict
from tests.tearing import PAYMENTS, SERVICES, Pipeline
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(900)]

CHANGELOG, OUTPUT, LEG_FIRST, LEG_SECOND, REQUESTS = 1, 2, 3, 4, 5
"""Parts of the ledger's transaction after its offset."""
OUTCOMES = 2, 3, 4
"""Parts of ingest's transaction after its changelog."""
OPERATOR = "operator@example.org"


class Supervised:
    """A context that restarts fenced services, as a supervisor does."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            for service in self._pipeline.services:
                if service.process.returncode == EXIT_FENCED and not service.process.running:
                    service.start()


def repair(pipeline: Pipeline, *options: str, code: int) -> dict[str, Any]:
    """Run the command."""
    words = ["repair", "--json", "--as", OPERATOR, "--bootstrap-servers", pipeline.brokers, *options]
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def records_of(pipeline: Pipeline, topic: str) -> list[Record]:
    found: list[Record] = []
    asyncio.run(read_topics(pipeline.brokers, [topic], lambda _topic, _p, records: found.extend(records)))
    return found


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    directory = tmp_path_factory.mktemp("repair")
    with cluster(directory / "kafka") as kafka, world_over(kafka.bootstrap_servers, directory / "world") as world:
        made = Pipeline(world)
        try:
            asyncio.run(made.fund())
            with Supervised(made):
                yield made
        finally:
            made.stop()


def lose(pipeline: Pipeline, name: str, *kept: set[int]) -> None:
    """Tear a transaction on every partition, keep some of its parts, and prevent its completion.

    Args:
        pipeline: the pipeline to tear.
        name: the service.
        kept: sets of parts, 0 for the offset, applied to the partitions in turn.
    """
    torn = SERVICES[name]
    parts = range(1 + len(torn.outputs))
    rows = [tuple(number in committed for number in parts) for committed in islice(cycle(kept), PARTITIONS)]

    async def set_offsets() -> None:
        ends = await stable_offsets(pipeline.brokers, [torn.topic])
        offsets = {partition: end for (_, partition), end in ends.items()}
        await set_group_offsets(pipeline.brokers, name, torn.topic, offsets)

    asyncio.run(pipeline.tear(torn, rows, before_successor=set_offsets))


def check_repaired(pipeline: Pipeline, service: str, topics: set[str]) -> list[dict[str, Any]]:
    """Check that verify fails, the dry run lists the gaps, the repair fills them, and verify passes."""
    before = verdict(pipeline.brokers)
    assert before["verdict"] == "fail"
    planned = repair(pipeline, "--dry-run", code=1)
    assert verdict(pipeline.brokers)["kinds"] == before["kinds"], "a dry run wrote something"
    done = repair(pipeline, code=0)
    assert done["scopes"] == planned["scopes"]
    assert {scope["service"] for scope in done["scopes"]} == {service}
    assert {topic for scope in done["scopes"] for topic in scope["records"]} == topics
    assert_exactly_once(verdict(pipeline.brokers))
    again = repair(pipeline, code=0)
    assert (again["scopes"], again["left"], again["failed"]) == ([], [], [])

    written = [decode_repaired(record.value or b"") for record in records_of(pipeline, catalogue.OPERATIONS_REPAIRS)]
    own = [one for one in written if one.repair_id == done["repair_id"]]
    assert sorted((one.partition, one.inputs) for one in own) == sorted(
        (scope["partition"], tuple(scope["inputs"])) for scope in done["scopes"]
    )
    assert {(one.by, one.service) for one in own} == {(OPERATOR, service)}
    scopes: list[dict[str, Any]] = done["scopes"]
    return scopes


def test_lost_outcomes_of_raw_records(pipeline: Pipeline) -> None:
    """Lose them with the state and without it."""
    lose(pipeline, "ingest", {0}, {0, CHANGELOG})
    topics = {catalogue.PAYMENTS_ACCEPTED, catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_DEAD_LETTER}
    scopes = check_repaired(pipeline, "ingest", topics)
    assert len(scopes) == PARTITIONS


def test_lost_identities_of_accepted_payments(pipeline: Pipeline) -> None:
    """Later records have moved the changelog's offset beyond them."""
    lose(pipeline, "ingest", {0, *OUTCOMES})
    asyncio.run(pipeline.pay())
    scopes = check_repaired(pipeline, "ingest", set())
    assert [scope["state_records"] for scope in scopes] == [PAYMENTS] * PARTITIONS


def test_lost_transfers(pipeline: Pipeline) -> None:
    lose(pipeline, "transform", {0, CHANGELOG})
    check_repaired(pipeline, "transform", {catalogue.LEDGER_TRANSFERS})


def test_lost_parts_of_bookings(pipeline: Pipeline) -> None:
    """Keep credit legs without postings, all but postings, postings without legs, or the state alone."""
    kept = {0, LEG_FIRST, LEG_SECOND}, {0, CHANGELOG, LEG_FIRST, LEG_SECOND, REQUESTS}, {0, OUTPUT, REQUESTS}
    lose(pipeline, "ledger", *kept, {0, CHANGELOG})
    topics = {catalogue.LEDGER_POSTINGS, catalogue.LEDGER_TRANSFERS, catalogue.EFFECTS_REQUESTS}
    scopes = check_repaired(pipeline, "ledger", topics)
    assert len(scopes) == PARTITIONS


def test_lost_requests(pipeline: Pipeline) -> None:
    """Lose what only the subscriptions that postings name can show, and the postings of legs that are skipped."""
    lose(pipeline, "ledger", {0, CHANGELOG, OUTPUT, LEG_FIRST, LEG_SECOND})
    scopes = check_repaired(pipeline, "ledger", {catalogue.EFFECTS_REQUESTS, catalogue.LEDGER_POSTINGS})
    # A debit notifies two destinations
    lost = {catalogue.EFFECTS_REQUESTS: 2 * PAYMENTS, catalogue.LEDGER_POSTINGS: PAYMENTS}
    assert [scope["records"] for scope in scopes] == [lost] * PARTITIONS


def test_lost_state_of_bookings(pipeline: Pipeline) -> None:
    """Balances, and the payments that can be reversed. Later bookings have moved the changelog's offset beyond them."""
    lose(pipeline, "ledger", {0, OUTPUT, LEG_FIRST, LEG_SECOND, REQUESTS})
    asyncio.run(pipeline.pay())
    scopes = check_repaired(pipeline, "ledger", {catalogue.LEDGER_POSTINGS})  # of the legs that are skipped
    assert all(scope["state_records"] > PAYMENTS for scope in scopes)


def test_lost_results(pipeline: Pipeline) -> None:
    lose(pipeline, "outbox", {0, CHANGELOG})
    check_repaired(pipeline, "outbox", {catalogue.EFFECTS_RESULTS})
    assert verdict(pipeline.brokers)["effects_in_doubt"] > 0


def test_the_reconciliation_recognises_repaired_records(pipeline: Pipeline, tmp_path: Path) -> None:
    with Operator(pipeline.brokers, tmp_path) as operator:
        report = operator.json()
    assert (report["verdict"], report["breaks"]["total"]) == ("clean", 0), report["breaks"]


async def expire_requests(brokers: str) -> None:
    """Delete the requests that the outbox has processed, as retention does after a week."""
    committed = await group_offsets(brokers, "outbox", catalogue.EFFECTS_REQUESTS)
    async with Cluster(brokers) as connection:
        for topic, partition in await connection.partitions([catalogue.EFFECTS_REQUESTS]):
            [node_id] = connection.by_leader([(topic, partition)])
            parts = [{"PartitionIndex": partition, "Offset": committed[partition]}]
            values = {"Topics": [{"Name": topic, "Partitions": parts}], "TimeoutMs": 10_000}
            answer = await connection.send(node_id, Request("DeleteRecords", 1, values))
            assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0


def test_expired_requests_are_not_written_again(pipeline: Pipeline) -> None:
    """The legs of booked payments were lost, and the repair comes after the retention of requests."""
    lose(pipeline, "ledger", {0, OUTPUT, REQUESTS})
    verdict(pipeline.brokers)  # waits until their effects were made
    asyncio.run(expire_requests(pipeline.brokers))
    check_repaired(pipeline, "ledger", {catalogue.LEDGER_TRANSFERS})


def test_a_repaired_record_counts_once(pipeline: Pipeline) -> None:
    """A service ignores a second delivery."""
    lose(pipeline, "transform", {0})
    assert repair(pipeline, code=0)["scopes"]
    repaired = [record for record in records_of(pipeline, catalogue.LEDGER_TRANSFERS) if header(record.headers, REPAIR)]
    before = len(records_of(pipeline, catalogue.LEDGER_POSTINGS))

    async def send_again() -> None:
        async with IdempotentWriter(pipeline.brokers) as writer:
            for record in repaired:
                await writer.write(record.topic, record.partition, record.key, record.value, record.headers)
            await writer.flush()

    assert repaired
    asyncio.run(send_again())
    kinds = verdict(pipeline.brokers)["kinds"]
    assert len(records_of(pipeline, catalogue.LEDGER_POSTINGS)) == before
    assert kinds["duplicate_transfer"] > 0
    left = repair(pipeline, "--dry-run", code=1)
    assert left["scopes"] == []
    assert {violation["kind"] for violation in left["left"]} >= {"duplicate_transfer"}
