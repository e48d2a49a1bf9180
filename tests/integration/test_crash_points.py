"""Kill each service at each crash point of a transaction; all nine invariants hold afterwards."""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos import crash
from shared.eos.crash import CRASH_POINTS
from shared.events.catalogue import TOPICS
from tests.harness import Service, eventually, services, settled
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(180)

NAMES = ("ingest", "transform", "ledger")
PAYMENTS = 300
QUICK = {("ingest", crash.AFTER_SEND), ("transform", crash.AFTER_OFFSETS), ("ledger", crash.END_TXN_SENT)}


@pytest.fixture(scope="module")
def running(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    with services(kafka.bootstrap_servers, tmp_path_factory.mktemp("services"), *NAMES) as started:
        yield started


@pytest.mark.parametrize(("name", "point"), mostly_full(itertools.product(NAMES, CRASH_POINTS), QUICK))
async def test_a_crash_at_a_named_point_changes_nothing(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path, name: str, point: str
) -> None:
    running[name].process.terminate()
    doomed = Service(name, kafka.bootstrap_servers, tmp_path, CRASH_POINT=f"{point}=kill:1").start().wait_ready()
    await send_raw(kafka.bootstrap_servers, payments(f"{name}-{point}", PAYMENTS))

    assert doomed.wait_exit() == -signal.SIGKILL
    running[name].start().wait_ready()

    assert_exactly_once(verdict(kafka.bootstrap_servers))


@full
async def test_a_graceful_stop_leaves_no_open_transaction(kafka: LocalKafka, running: dict[str, Service]) -> None:
    await send_raw(kafka.bootstrap_servers, payments("graceful", 20_000))
    for name in NAMES:
        # Stop in mid-work, with input left
        running[name].process.request_stop()
    assert [running[name].wait_exit(20) for name in NAMES] == [0, 0, 0]

    topics = [topic.name for topic in TOPICS]
    await eventually(lambda: settled(kafka.bootstrap_servers, topics), "no transaction open", within_s=2)

    for name in NAMES:
        running[name].start().wait_ready()
    assert_exactly_once(verdict(kafka.bootstrap_servers))
