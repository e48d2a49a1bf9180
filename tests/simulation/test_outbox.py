"""The outbox on the simulated cluster: its real runtime, transactions and topics; Redis and the sinks are models."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from deploy.drills.outbox import requests_to
from services.outbox import trust
from services.outbox.__main__ import TOPICS
from services.outbox.dispatch import Calls
from services.outbox.endpoints import Endpoints
from services.outbox.lanes import Lanes, lane_name
from services.outbox.limits import policy_of
from services.outbox.service import Outbox
from services.outbox.trust import OutboxContext
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING, REFERENCE_ENDPOINTS
from shared.events.effects import (
    WAITING_PREFIX,
    Channel,
    EffectRequest,
    EffectResult,
    EffectState,
    decode_result,
    encode_request,
)
from shared.events.endpoints import EndpointState, decode_endpoint
from shared.events.headers import ORIGIN, SOURCE
from shared.events.partitions import partition_for
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_table, read_topics
from shared.kafka.runtime.global_table import GlobalTable
from shared.kafka.runtime.runtime import Runtime
from shared.settings import OutboxSettings, load
from shared.telemetry.server import Health
from tests.outbox_rounds import CAPACITY, ModelClaims, Redis, Sites, accepting, dead, judge
from tests.partitions import PARTITIONS
from tests.simulation.loop import Process
from tests.simulation.world import SERVERS, World, history

FINE, SLOW, DEAD = ("https://fine.example/hook", "https://slow.example/hook", "https://dead.example/hook")
MAIL = "mailto:bob@example.org"


class Outside:
    """Redis, by partition, and the sinks: what outlives an instance."""

    def __init__(self) -> None:
        self.redis = [Redis() for _ in range(PARTITIONS)]
        self.webhook, self.email = Sites(True, 64), Sites(False, 8)
        self.webhook.answers = {SLOW: accepting(4.9), DEAD: dead()}

    def claims(self, _redis: object, partition: int, token: int, _owner: str, **settings: Any) -> ModelClaims:
        return ModelClaims(self.redis[partition], token, settings["lease_ms"])

    async def run(self, instance: int, stop: asyncio.Event, **settings: str) -> int:
        """Run an instance until it is stopped; returns its exit code."""
        given = {f"ONCE_{name}": value for name, value in settings.items()}
        environment = {
            "ONCE_BOOTSTRAP_SERVERS": SERVERS,
            "ONCE_REDIS_URL": "redis://nowhere:1",
            "ONCE_INSTANCE": str(instance),
            "ONCE_PARTITIONS": str(PARTITIONS),
            **given,
        }
        chosen = load(OutboxSettings, environment)
        table = GlobalTable(SERVERS, REFERENCE_ENDPOINTS, bytes.decode, decode_endpoint)
        endpoints = Endpoints(table.values, int(chosen.disable_after_h * 3_600_000))
        lanes = Lanes(chosen.calls_max, chosen.lane_calls_max, chosen.circuit_failures, chosen.circuit_open_s)
        policy = policy_of(chosen)
        calls = Calls({Channel.WEBHOOK: self.webhook, Channel.EMAIL: self.email}, lanes, policy, endpoints)
        redis: Any = None
        workload = Outbox(OutboxContext(chosen, redis, calls, policy, endpoints, "", CAPACITY), resources=(table,))
        return await Runtime(workload, chosen, TOPICS, Health()).run(stop)


async def write(requests: list[EffectRequest]) -> None:
    async with IdempotentWriter(SERVERS) as writer:
        for number, request in enumerate(requests, round(asyncio.get_running_loop().time() * 1e6)):
            headers = ((ORIGIN, b"payments.raw:0:0"), (SOURCE, b"ledger.transfers:99:%d" % number))
            partition = partition_for(request.account, PARTITIONS)
            await writer.write(EFFECTS_REQUESTS, partition, request.account.encode(), encode_request(request), headers)
        await writer.flush()


async def read(topic: str) -> list[Record]:
    found: list[Record] = []
    await read_topics(SERVERS, [topic], lambda _t, _p, records: found.extend(records))
    return found


async def settled(requests: list[EffectRequest], timeout_s: float) -> dict[str, EffectResult]:
    async with asyncio.timeout(timeout_s):
        while True:
            results = [decode_result(record.value or b"") for record in await read(EFFECTS_RESULTS)]
            found = {result.effect_id: result for result in results}
            if all(request.effect_id in found for request in requests):
                return found
            await asyncio.sleep(1)


def simulated(main: Callable[[World, Outside], Any], seed: int = 1) -> None:
    outside = Outside()
    with mock.patch.object(trust, "Claims", outside.claims):
        history(lambda world: main(world, outside), seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_instances_that_are_killed_and_stopped_lose_and_repeat_nothing(seed: int) -> None:
    async def main(world: World, outside: Outside) -> None:
        stops = [asyncio.Event() for _ in range(3)]
        processes = [Process(world.network.loop, f"outbox-{number}") for number in range(3)]
        first, second = (processes[number].start(outside.run(number, stops[number])) for number in range(2))
        await asyncio.sleep(world.chance.uniform(5, 10))
        requests = [each for place in (FINE, SLOW, DEAD, MAIL) for each in requests_to(place, 60)]
        await write(requests[:200])
        await asyncio.sleep(world.chance.uniform(0.1, 8))
        processes[0].kill()
        await write(requests[200:])
        await asyncio.sleep(world.chance.uniform(0.1, 40))
        stops[1].set()
        assert await second == 0
        third = processes[2].start(outside.run(2, stops[2]))
        outside.webhook.answers.clear()
        results = await settled(requests, 400)
        states = judge(outside.webhook.made + outside.email.made, requests, results)
        assert states[EffectState.SENT] >= 180 + 60 - 16
        assert all(results[each.effect_id].state == EffectState.SENT for each in requests if each.destination != MAIL)
        stops[2].set()
        assert await third == 0
        assert not first.done()

    simulated(main, seed)


def test_an_endpoint_that_fails_for_long_is_disabled_for_all_instances() -> None:
    async def main(world: World, outside: Outside) -> None:
        stop = asyncio.Event()
        running = [
            Process(world.network.loop, f"outbox-{number}").start(
                outside.run(number, stop, OUTBOX_DISABLE_AFTER_H="0.05", OUTBOX_RETRY_MAX_S="20")
            )
            for number in range(2)
        ]
        await asyncio.sleep(10)
        requests = [each for place in (FINE, DEAD) for each in requests_to(place, 80)]
        await write(requests)
        results = await settled(requests, 600)
        failed = [results[each.effect_id] for each in requests if each.destination == DEAD]
        assert {result.reason for result in failed} == {"endpoint_disabled"}
        known = await read_table(SERVERS, REFERENCE_ENDPOINTS, decode_endpoint)
        assert {name: each.state for name, each in known.items()} == {lane_name(DEAD): EndpointState.DISABLED}
        before = outside.webhook.calls.total()
        late = requests_to(DEAD, 30)
        await write(late)
        assert {(await settled(late, 60))[each.effect_id].state for each in late} == {EffectState.FAILED}
        assert outside.webhook.calls.total() == before
        waiting = [record for record in await read(EFFECTS_WAITING) if (record.key or b"").startswith(WAITING_PREFIX)]
        puts = sum(record.value is not None for record in waiting)
        assert puts <= 80 + outside.webhook.calls.total()
        stop.set()
        assert [await each for each in running] == [0, 0]

    simulated(main)
