"""The ledger is upgraded under load, before the outbox: requests with a field that the outbox does not know."""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.outbox import BRIEF
from deploy.drills.sinks.receiver import Faults, Mode
from deploy.local.process import ManagedProcess
from services.outbox.domain import EARLIER_CALL
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.effects import (
    WAITING_PREFIX,
    EffectRequest,
    EffectState,
    Resolution,
    decode_request,
    decode_result,
)
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.reader import read_topics
from tests.commands import once
from tests.harness import ROOT, Service, eventually, services
from tests.integration.later_ledger import FIELD
from tests.outbox import World, assert_i11, world
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full

pytestmark = [pytest.mark.timeout(400), full]

BATCH = 20
LOAD_PAUSE_S = 0.2


@pytest.fixture
def running(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def later(ledger: Service) -> Service:
    """Have a ledger that is not started yet be a version ahead."""
    before = ledger.process
    argv = [sys.executable, "-m", "tests.integration.later_ledger"]
    ledger.process = ManagedProcess(before.name, argv, before.env, before.log_path, cwd=ROOT)
    return ledger


async def records(running: World, topic: str) -> list[Record]:
    found: list[Record] = []
    await read_topics(running.bootstrap_servers, [topic], lambda _topic, _partition, some: found.extend(some))
    return found


async def load(running: World, done: asyncio.Event) -> None:
    numbers = itertools.count()
    while not done.is_set():
        await send_raw(running.bootstrap_servers, payments(f"load-{next(numbers)}", BATCH))
        await asyncio.sleep(LOAD_PAUSE_S)


async def test_requests_of_a_later_ledger_are_processed_and_passed_on_whole(running: World, tmp_path: Path) -> None:
    brokers = running.bootstrap_servers
    subscribed = once(
        *("subscriptions", "set", "*", "--notice", running.receiver.url, "--event", "file:nowhere"),
        *("--bootstrap-servers", brokers),
    )
    assert subscribed.exit_code == 0, subscribed.stderr
    first = running.outbox(**BRIEF).start().wait_ready()
    done = asyncio.Event()
    with services(brokers, tmp_path, "ingest", "transform"):
        ledger = Service("ledger", brokers, tmp_path).start().wait_ready()
        loading = asyncio.create_task(load(running, done))
        await eventually(lambda: _requested(running), "requests of the present ledger")
        ledger.process.terminate()
        ahead = later(Service("ledger", brokers, tmp_path)).start().wait_ready()
        try:
            await eventually(lambda: _has_field(running, catalogue.EFFECTS_REQUESTS), "requests with the field")
            running.receiver.fail(Faults(Mode.STATUS, status=500))
            await eventually(lambda: _has_field(running, catalogue.EFFECTS_WAITING), "waiting with the field")
            first.process.kill()
            running.outbox(**BRIEF).start().wait_ready()
            running.receiver.fail(Faults())
            done.set()
            await loading
            resolved = await _resolve_one(running)
            await wait_drained(brokers, deadline_s=60)
            await eventually(lambda: _all_decided(running), "results of all effects", 90)
            checked = verdict(brokers)
            assert_exactly_once(checked)
        finally:
            done.set()
            ahead.process.terminate()
    asked = await _requests(running)
    notices = [request for request in asked if request.kind == "notice"]
    events = [request for request in asked if request.kind == "event"]
    results = await running.results()
    assert assert_i11(notices, results, running.webhook_effects()) == {EffectState.SENT: len(notices)}
    refused = [results[request.effect_id] for request in events]
    # What the killed outbox had claimed, it may have called
    assert {one.state for one in refused if EARLIER_CALL not in one.detail} == {EffectState.FAILED}
    assert {one.state for one in refused if EARLIER_CALL in one.detail} <= {EffectState.IN_DOUBT}
    await _assert_passed_on(running, resolved)


async def _requested(running: World) -> bool:
    return bool(await _requests(running))


async def _has_field(running: World, topic: str) -> bool:
    return any(FIELD in (record.value or b"") for record in await records(running, topic))


async def _all_decided(running: World) -> bool:
    return {request.effect_id for request in await _requests(running)} <= (await running.results()).keys()


async def _requests(running: World) -> list[EffectRequest]:
    decoded = [decode_request(record.value or b"") for record in await records(running, catalogue.EFFECTS_REQUESTS)]
    return [request for request in decoded if isinstance(request, EffectRequest)]


async def _resolve_one(running: World) -> str:
    """Have a failed effect of the later ledger made again, which fails again; return its id."""

    async def failed() -> bool:
        return await _has_field(running, catalogue.EFFECTS_DEAD_LETTER)

    await eventually(failed, "a dead letter with the field")
    letters = [record.value or b"" for record in await records(running, catalogue.EFFECTS_DEAD_LETTER)]
    request = decode_request(next(value for value in letters if FIELD in value))
    decided = once(
        *("effects", "resolve", request.effect_id, "--resend", "--bootstrap-servers", running.bootstrap_servers)
    )
    assert decided.exit_code == 0, decided.stderr

    async def revised() -> bool:
        return (await running.results())[request.effect_id].revision == 2

    await eventually(revised, "the decision's result")
    return request.effect_id


async def _assert_passed_on(running: World, resolved: str) -> None:
    """Each record made of a request has the field if the request has it, and as it was."""
    bytes_of: dict[str, bytes] = {}
    for record in await records(running, catalogue.EFFECTS_REQUESTS):
        decoded = decode_request(record.value or b"")
        if isinstance(decoded, Resolution):
            assert bytes_of[decoded.effect_id] in (record.value or b"")
        else:
            bytes_of[decoded.effect_id] = record.value or b""
    having = [value for value in bytes_of.values() if FIELD in value]
    assert 0 < len(having) < len(bytes_of), "both ledgers must have written requests"
    letters = [record.value or b"" for record in await records(running, catalogue.EFFECTS_DEAD_LETTER)]
    assert all(bytes_of[decode_request(value).effect_id] == value for value in letters)
    assert sum(decode_request(value).effect_id == resolved for value in letters) == 2
    for record in await records(running, catalogue.EFFECTS_RESULTS):
        result = decode_result(record.value or b"")
        assert result.request is None or bytes_of[result.effect_id] in (record.value or b"")
    for record in await records(running, catalogue.EFFECTS_WAITING):
        if record.value is not None and (record.key or b"").startswith(WAITING_PREFIX):
            assert bytes_of[(record.key or b"").removeprefix(WAITING_PREFIX).decode()] in record.value
