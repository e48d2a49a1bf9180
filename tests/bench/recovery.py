"""How long partitions pause after a fault, and what the stack takes at rest.

Payments come at a steady rate. A partition's pause is the longest time in which its committed offset did not move.

- `restart`: the only instance of transform is killed, and started again under its ONCE_INSTANCE at once.
- `other`: one of two instances is killed, and the other one takes its partitions over.
- `stop`, `join`: one of two instances ends by SIGTERM, and comes back; only partitions that stay with the other count.
- `broker`: one of three brokers is killed.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.process import ManagedProcess
from deploy.local.supervisor.stack import Stack
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.validation import key_of
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import committed_offsets
from tests.bench.gauges import cpu_s, say
from tests.harness import Service, eventually
from tests.partitions import PARTITIONS
from tests.payments import payments

SERVICE, TOPIC = "transform", catalogue.PAYMENTS_ACCEPTED
RATE = 300  # payments per second
LOOK_S = 0.02
BEFORE_S = 3.0  # of undisturbed work before each fault
ARRIVED_S = 1.0
"""By then, everything that a killed process had sent is visible; no process takes over so soon."""
DEADLINE_S = 60.0
REST_S = 30.0
ALL = frozenset(range(PARTITIONS))


class Watch:
    """When each partition's committed offset moved."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._moved: dict[int, list[float]] = defaultdict(list)
        self._at: dict[int, int] = {}

    async def run(self) -> None:
        """Look until it is cancelled."""
        async with Cluster(self._bootstrap_servers) as cluster:
            while True:
                for partition, offset in (await committed_offsets(cluster, SERVICE, TOPIC)).items():
                    if offset != self._at.get(partition):
                        self._at[partition] = offset
                        self._moved[partition].append(time.monotonic())
                await asyncio.sleep(LOOK_S)

    async def moved(self, partitions: Iterable[int], since_s: float) -> None:
        """Wait until each of these has moved since then, on the monotonic clock."""

        async def all_moved() -> bool:
            return all(self._moved[partition] and self._moved[partition][-1] > since_s for partition in partitions)

        await eventually(all_moved, "the offsets of all partitions move", DEADLINE_S)

    def pause_s(self, partitions: Iterable[int], since_s: float) -> float:
        """The longest pause of any of these that ended since then."""
        return max(
            later - earlier
            for partition in partitions
            for earlier, later in zip(self._moved[partition], self._moved[partition][1:], strict=False)
            if later > since_s
        )


async def measure_recovery(directory: Path, restarts: int, others: int) -> dict[str, object]:
    """Measure pauses after faults.

    Args:
        directory: for brokers and logs.
        restarts: how many of each kind that takes few seconds.
        others: how many of each kind that waits for the end of a session.

    Returns:
        By kind, seconds: median and most.
    """
    kafka = LocalKafka(directory / "kafka")
    say("starting three brokers")
    kafka.start()
    try:
        await asyncio.to_thread(kafka.wait_ready, 120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        async with _at_work(kafka, directory) as (watch, first):
            found = {"restart": await _repeat(watch, restarts, lambda: _killed(watch, first.process))}
            second = Service(SERVICE, kafka.bootstrap_servers, directory, "1")
            found["join"], found["stop"] = await _joined_and_stopped(watch, second, restarts)
            found["other"] = await _repeat(watch, others, lambda: _taken_over(watch, second))
            found["broker"] = await _repeat(watch, others, lambda: _broker_lost(watch, kafka))
    finally:
        kafka.kill()
    return {
        kind: {
            "rounds": len(seconds),
            "median_s": round(statistics.median(seconds), 2),
            "max_s": round(max(seconds), 2),
        }
        for kind, seconds in found.items()
    }


@asynccontextmanager
async def _at_work(kafka: LocalKafka, directory: Path) -> AsyncIterator[tuple[Watch, Service]]:
    running = [Service(name, kafka.bootstrap_servers, directory).start() for name in ("ingest", SERVICE)]
    watch = Watch(kafka.bootstrap_servers)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(_pay(kafka.bootstrap_servers))]
    try:
        for service in running:
            await asyncio.to_thread(service.wait_ready)
        yield watch, running[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for service in running:
            service.process.kill()


async def _pay(bootstrap_servers: str) -> None:
    """Send payments at a steady rate until it is cancelled."""
    async with IdempotentWriter(bootstrap_servers, request_timeout_s=DEADLINE_S) as writer:
        began_s = time.monotonic()
        for number, value in enumerate(payments("recovery", 10**9, accounts=5000)):
            await asyncio.sleep(max(began_s + number / RATE - time.monotonic(), 0))
            key, partition = key_of(value, PARTITIONS)
            await writer.write(catalogue.PAYMENTS_RAW, partition, key, value, BY_OPERATOR)


async def _repeat(watch: Watch, times: int, fault: Callable[[], Awaitable[float]]) -> list[float]:
    found = []
    for number in range(times):
        await watch.moved(ALL, time.monotonic())
        await asyncio.sleep(BEFORE_S)
        found.append(await fault())
        say(f"{number + 1} of {times}: {found[-1]:.2f} s")
    return found


async def _killed(watch: Watch, process: ManagedProcess) -> float:
    """Kill a process, start it again at once, and return the longest pause of all partitions."""
    since_s = await _kill(process)
    process.start()
    return await _pause_s(watch, since_s)


async def _taken_over(watch: Watch, second: Service) -> float:
    lines = len(second.log())
    second.start()
    await _assigned(second, lines)
    await watch.moved(ALL, time.monotonic())
    return await _pause_s(watch, await _kill(second.process))


async def _broker_lost(watch: Watch, kafka: LocalKafka) -> float:
    victim = kafka.processes[0]
    pause_s = await _pause_s(watch, await _kill(victim))
    victim.start()
    await asyncio.to_thread(kafka.wait_ready, 120)
    return pause_s


async def _kill(process: ManagedProcess) -> float:
    since_s = time.monotonic()
    await asyncio.to_thread(process.kill)
    return since_s


async def _pause_s(watch: Watch, since_s: float) -> float:
    await watch.moved(ALL, since_s + ARRIVED_S)
    return watch.pause_s(ALL, since_s)


async def _joined_and_stopped(watch: Watch, second: Service, times: int) -> tuple[list[float], list[float]]:
    """Pauses of the partitions that stay with the first instance."""
    joins, stops = [], []
    for _ in range(times):
        await asyncio.sleep(BEFORE_S)
        began_s, lines = time.monotonic(), len(second.log())
        second.start()
        staying = ALL - await _assigned(second, lines)
        await watch.moved(ALL, time.monotonic())
        joins.append(watch.pause_s(staying, began_s))
        began_s = time.monotonic()
        await asyncio.to_thread(second.process.terminate)
        await watch.moved(ALL, time.monotonic())
        stops.append(watch.pause_s(staying, began_s))
        say(f"join {joins[-1]:.2f} s, stop {stops[-1]:.2f} s; {len(staying)} partitions stay")
    return joins, stops


async def _assigned(service: Service, lines: int) -> set[int]:
    """Wait until it has partitions, by its log behind so many lines; return them."""
    found: set[int] = set()

    async def has_some() -> bool:
        for line in service.log()[lines:]:
            if line["event"] == "partitions assigned":
                found.update(cast("list[int]", line["partitions"]))
        return bool(found)

    await eventually(has_some, f"{service.name} has partitions", DEADLINE_S)
    return found


def measure_rest(directory: Path) -> dict[str, object]:
    """Cores that three brokers take at rest, and the whole stack, in the same run."""
    found = {}
    with Stack(directory / "bare", services=()) as stack:
        stack.wait_ready()
        found["brokers"] = _cores(stack)
    with Stack(directory / "stack") as stack:
        stack.wait_ready()
        found["stack"] = _cores(stack)
    return {
        **{name: round(cores, 3) for name, cores in found.items()},
        "more": round(found["stack"] - found["brokers"], 3),
    }


def _cores(stack: Stack) -> float:
    say("waiting for the brokers to come to rest")
    time.sleep(REST_S)
    pids = [pid for component in stack.components if (pid := component.process.pid) is not None]
    before = sum(map(cpu_s, pids))
    time.sleep(REST_S)
    return (sum(map(cpu_s, pids)) - before) / REST_S
