"""One side of the comparison at work: its processes, what they use, and how long its records take.

A rate counts from the first record that is read until the last stable offsets of the output topic
move for the last time. A latency counts from sending a record until a
read_committed reader has its output.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.supervisor.component import http_ready
from shared.eos.records import Record
from shared.events.headers import Headers
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.consumer import Tail
from shared.kafka.client.idempotent import IdempotentWriter
from tests.bench.gauges import cpu_s, high_water_mb
from tests.bench.peers.cluster import visible
from tests.harness import ROOT, eventually

LOOK_S = 0.05
QUIET_S = 5.0  # without a change of the output's end, a run is over
FIRST_DEADLINE_S = 120.0
STOP_DEADLINE_S = 15.0
LATENCY_RATE = 1000  # records per second
LATENCY_WARM_S = 10
LATENCY_S = 25
LATENCY_DRAIN_S = 3


class Command(NamedTuple):
    """One process.

    Attributes:
        environment: added to this process's own.
        port: where it serves /readyz; None where it does not. The next process starts when it is ready.
    """

    argv: list[str]
    environment: Mapping[str, str]
    port: int | None = None


class Sent(NamedTuple):
    """A record to send, and the identity that its output has."""

    partition: int
    key: bytes
    value: bytes
    identity: str
    headers: Headers = ()


@dataclass(frozen=True)
class Side:
    """One way to do the work, with topics of its own.

    Attributes:
        commands: its processes, in the order in which they start.
        source: the input topic.
        sink: the topic of its last output.
        check: checks the output of a run; AssertionError if it is not exactly the input's.
        close: deletes what the run made.
    """

    name: str
    commands: Sequence[Command]
    source: str
    sink: str
    check: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


class Usage(NamedTuple):
    """CPU seconds used so far."""

    at_s: float  # on the monotonic clock
    side: float
    brokers: float


class Processes:
    """The processes of one side.

    Attributes:
        first: the usage when the first record was read; None before.
    """

    def __init__(self, kafka: LocalKafka, log: Path) -> None:
        self._kafka = kafka
        self._log = log
        self._started: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self.first: Usage | None = None

    async def start(self, commands: Sequence[Command]) -> None:
        """Start all, one after the other. What they print goes to the log."""
        for command in commands:
            with self._log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    env={**os.environ, **command.environment},
                    cwd=ROOT,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                )
            self._started.append(process)
            self._readers.append(asyncio.create_task(self._read(process)))
            if command.port is not None and command is not commands[-1]:
                await self.wait_ready(command.port)

    async def wait_ready(self, port: int) -> None:
        """Wait until the process on this port is ready."""

        async def ready() -> bool:
            self.usage()
            return await asyncio.to_thread(http_ready, port)

        await eventually(ready, f"ready on port {port}", FIRST_DEADLINE_S)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"FIRST") and self.first is None:
                self.first = self.usage()
            else:
                with self._log.open("ab") as log:
                    log.write(line)

    def usage(self) -> Usage:
        """Usage by now; AssertionError with the log's end if a process has ended."""
        for process in self._started:
            assert process.returncode is None, f"ended with {process.returncode}:\n{self._log.read_text()[-3000:]}"
        side = sum(cpu_s(process.pid) for process in self._started)
        return Usage(time.monotonic(), side, sum(map(cpu_s, self._kafka.pids)))

    def memory_mb(self) -> float:
        """The sum of the processes' peak resident memory."""
        return sum(high_water_mb(process.pid) for process in self._started)

    async def stop(self) -> None:
        """Stop all; kill those that do not end in time."""
        for process in self._started:
            if process.returncode is None:
                process.terminate()
        for process in self._started:
            try:
                await asyncio.wait_for(process.wait(), STOP_DEADLINE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.gather(*self._readers)


async def throughput(kafka: LocalKafka, side: Side, directory: Path, count: int) -> dict[str, float]:
    """Run a side over its input, which is there already, and check its output.

    Returns:
        payments per second, CPU seconds for 100,000 payments of the side and of the brokers, peak memory in MB.
    """
    processes = Processes(kafka, directory / f"{side.name}.log")
    try:
        await processes.start(side.commands)
        last, done = processes.usage(), 0
        began = time.monotonic()
        async with Cluster(kafka.bootstrap_servers) as cluster:
            targets = await cluster.partitions([side.sink])
            while time.monotonic() - last.at_s < (QUIET_S if done else FIRST_DEADLINE_S):
                await asyncio.sleep(LOOK_S)
                now = await visible(cluster, targets)
                if now != done:
                    last, done = processes.usage(), now
        first = processes.first
        assert first is not None, f"no record was read within {time.monotonic() - began:.0f} s"
        memory_mb = processes.memory_mb()
    finally:
        await processes.stop()
    await side.check()
    seconds = last.at_s - first.at_s
    scale = 100_000 / count
    return {
        "seconds": round(seconds, 2),
        "payments_per_s": round(count / seconds),
        "cpu_s_per_100k": round((last.side - first.side) * scale, 2),
        "broker_cpu_s_per_100k": round((last.brokers - first.brokers) * scale, 2),
        "memory_mb": round(memory_mb),
    }


async def latency(
    kafka: LocalKafka,
    side: Side,
    directory: Path,
    records: Callable[[int], Iterator[Sent]],
    identity: Callable[[Record], str | None],
) -> dict[str, float]:
    """Send records at a steady rate to a side at rest, and time their outputs.

    Args:
        records: makes so many input records.
        identity: of an output's record; None for a record that is not counted.

    Returns:
        milliseconds (p50, p99), CPU seconds per second of the side and of the brokers, number of samples.
    """
    processes = Processes(kafka, directory / f"{side.name}-latency.log")
    taken: list[float] = []
    sent_s: dict[str, float] = {}
    try:
        await processes.start(side.commands)
        for command in side.commands:
            if command.port is not None:
                await processes.wait_ready(command.port)
        async with Tail(kafka.bootstrap_servers, side.sink) as tail, IdempotentWriter(kafka.bootstrap_servers) as out:
            began = time.monotonic()
            counted_s = began + LATENCY_WARM_S
            end_s = counted_s + LATENCY_S
            source = records(LATENCY_RATE * (LATENCY_WARM_S + LATENCY_S))
            sender = asyncio.create_task(_send(out, side.source, source, sent_s))
            before = after = processes.usage()
            while (now := time.monotonic()) < end_s + LATENCY_DRAIN_S:
                if now < counted_s:
                    before = processes.usage()
                if now < end_s:
                    after = processes.usage()
                for record in await tail.poll(50):
                    name = identity(record)
                    begun_s = None if name is None else sent_s.pop(name, None)
                    if begun_s is not None and begun_s > counted_s:
                        taken.append((time.monotonic() - begun_s) * 1000)
            await sender
    finally:
        await processes.stop()
    assert len(taken) > LATENCY_RATE * LATENCY_S * 0.95, f"{len(taken)} outputs in time"
    taken.sort()
    seconds = after.at_s - before.at_s
    return {
        "p50_ms": round(taken[len(taken) // 2], 1),
        "p99_ms": round(taken[len(taken) * 99 // 100], 1),
        "cpu_s_per_s": round((after.side - before.side) / seconds, 3),
        "broker_cpu_s_per_s": round((after.brokers - before.brokers) / seconds, 3),
        "samples": len(taken),
    }


async def _send(writer: IdempotentWriter, topic: str, records: Iterator[Sent], sent_s: dict[str, float]) -> None:
    """Send at a steady rate, and note when each record left."""
    began = time.monotonic()
    for number, (partition, key, value, identity, headers) in enumerate(records):
        await asyncio.sleep(max(began + number / LATENCY_RATE - time.monotonic(), 0))
        sent_s[identity] = time.monotonic()
        await writer.write(topic, partition, key, value, headers)
    await writer.flush()
