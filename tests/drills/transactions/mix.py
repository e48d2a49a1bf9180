"""A random mix of faults under thousands of transactions: `python -m tests.drills.transactions.mix`.

Two instances of this project's runtime share a topic's partitions, on three brokers behind the proxy. From a seed,
requests of every kind are lost, late, repeated or cut off; instances are killed, paused for longer than their session
and stopped; brokers are killed. Then all is healed, and the output is compared with the input as in the table of
`python -m tests.drills.transactions`.

One JSON object goes to stdout, progress to stderr. Exit codes: 0 passed; 1 an anomaly, or an instance that ended by
itself; 2 wrong usage.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import uvloop

from deploy.drills.clients.job import Job
from deploy.drills.proxy.injection import NotInjectedError
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.requests import Request
from deploy.drills.proxy.rules import Action, Close, Delay, Drop, Part, Repeat, RepeatLate, Rule
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Record
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, read_topics
from tests.bench.gauges import say
from tests.bench.peers.cluster import create
from tests.drills.transactions.brokers import start
from tests.drills.transactions.cell import REQUEST_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, topics
from tests.drills.transactions.faults import APIS
from tests.drills.transactions.hop import PROGRAMS, Hop
from tests.drills.transactions.intentions import Intentions
from tests.drills.transactions.judge import Anomalies, judge
from tests.drills.transactions.output import read_output
from tests.harness import eventually, settled
from tests.partitions import PARTITIONS

INSTANCES: Final = 2
TAG: Final = "mix"
WRITE_EVERY_S: Final = 0.02
FAULT_EVERY_S: Final = 2.0
"""On average. A fault takes up to ten seconds, so several are there at a time."""
MATCH_S: Final = 10.0
PAUSE_S_MAX: Final = 12.0  # a session has 6 s, a transaction too
HEALED_S: Final = 120.0
KILLED: Final = -9
OTHER_APIS: Final = ("ConsumerGroupHeartbeat", "OffsetFetch", "FindCoordinator", "Fetch", "Metadata")
PROGRAM: Final = next(program for program in PROGRAMS if program.name == "once v2")
"""Not v1, which cannot tell a late copy of EndTxn from the next transaction's own."""


def request_fault(chance: random.Random) -> Rule:
    """Choose what happens to one of the next requests."""
    api = chance.choice(APIS if chance.random() < 0.75 else OTHER_APIS)
    late_s = chance.uniform(0.05, 8.0)
    part = chance.choice(list(Part))
    actions: list[Action] = [
        Drop(part, closes=chance.random() < 0.5),
        Delay(part, late_s),
        Repeat(),
        RepeatLate(late_s),
        Close(forwards=chance.random() < 0.5),
    ]
    instance = chance.randrange(INSTANCES)
    identified = api in APIS
    return Rule(
        api=api,
        action=chance.choice(actions),
        transactional_id=f"{TAG}-{instance}" if identified else None,
        first=chance.randint(1, 5) if identified and api != "InitProducerId" else 1,
    )


class Mix:
    """The instances and brokers at work.

    Attributes:
        faults: that were made, by kind.
        ends: exit codes of instances that were not killed.
    """

    def __init__(self, kafka: LocalKafka, seed: int, logs: Path) -> None:
        self._kafka = kafka
        self._brokers = kafka.bootstrap_servers
        self._argv = PROGRAM.argv("")
        self._chance = random.Random(seed)
        self._logs = logs
        self._source, self._sink, self._changelog = topics(TAG)
        self._intentions = [Intentions(f"{TAG}-{instance}") for instance in range(INSTANCES)]
        self._process_fault = asyncio.Lock()
        self._written = 0
        self._hops: list[Hop] = []
        self.faults: Counter[str] = Counter()

    @property
    def transactions(self) -> int:
        """How many transactions with records the instances have ended."""
        return sum(one.transactions for one in self._intentions)

    @property
    def ends(self) -> list[int | None]:
        return [code for hop in self._hops for code in hop.ends if code != KILLED]

    async def run(self, transactions: int) -> Anomalies:
        """Inject faults until so many transactions were ended; heal, and judge."""
        await create(self._kafka, [self._source, self._sink, self._changelog])
        async with AsyncExitStack() as stack:
            self._proxy = await stack.enter_async_context(Proxy(self._brokers, self._observe))
            writer = IdempotentWriter(self._brokers, request_timeout_s=HEALED_S)
            self._writer = await stack.enter_async_context(writer)
            for instance in range(INSTANCES):
                variables = self._job()._replace(instance=str(instance)).environment()
                hop = Hop(self._argv, variables, self._logs / f"{TAG}-{instance}.log")
                self._hops.append(await stack.enter_async_context(hop))
            async with _background(self._write()), _background(self._report(transactions)):
                await self._inject(transactions)
            await self._writer.flush()
            await self._finish()
            return await self._judge()

    async def _finish(self) -> None:
        """Wait until all records have passed, stop the instances, and wait until no transaction is open."""
        with suppress(TimeoutError):  # what is pending is part of the verdict
            await eventually(self._drained, "all records passed", HEALED_S)
        for hop in self._hops:
            await hop.stop()
        with suppress(TimeoutError):
            await eventually(self._settled, "no transaction open", HEALED_S)

    def _job(self) -> Job:
        timeouts = REQUEST_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS
        return Job(self._proxy.bootstrap_servers, self._source, self._sink, self._changelog, TAG, *timeouts)

    def _observe(self, request: Request) -> None:
        for one in self._intentions:
            one.observe(request)

    async def _write(self) -> None:
        while True:
            for partition in range(PARTITIONS):
                await self._writer.write(self._source, partition, b"key", str(self._written).encode())
                self._written += 1
            await asyncio.sleep(WRITE_EVERY_S)

    async def _report(self, transactions: int) -> None:
        while True:
            await asyncio.sleep(10)
            made = self.faults.total()
            say(f"{self.transactions}/{transactions} transactions, {made} faults, ends {self.ends or 'none'}")

    async def _inject(self, transactions: int) -> None:
        """Make faults; return when enough transactions were ended and every fault is healed."""
        async with asyncio.TaskGroup() as group:
            while self.transactions < transactions:
                await asyncio.sleep(self._chance.expovariate(1 / FAULT_EVERY_S))
                if self._chance.random() < 0.8:
                    group.create_task(self._fault_request(request_fault(self._chance)))
                elif not self._process_fault.locked():
                    group.create_task(self._fault_process())

    async def _fault_request(self, rule: Rule) -> None:
        injection = self._proxy.add(rule)
        with suppress(NotInjectedError):  # such a request is not sent just now; only what was made counts
            await injection.acted(1, MATCH_S)
            self.faults[f"{rule.api}: {type(rule.action).__name__}"] += 1
            await injection.done(1, MATCH_S)
        self._proxy.remove(injection)

    async def _fault_process(self) -> None:
        async with self._process_fault:
            hop = self._chance.choice(self._hops)
            pause_s = self._chance.uniform(1.0, PAUSE_S_MAX)
            kind = self._chance.choice(("instance killed", "instance paused", "instance stopped", "broker killed"))
            if not hop.process.running:
                return  # killed just now: its supervisor has not yet started it again
            self.faults[kind] += 1
            match kind:
                case "instance killed":
                    hop.kill()
                case "instance paused":
                    hop.pause()
                    await asyncio.sleep(pause_s)
                    hop.resume()
                case "instance stopped":
                    await hop.stop()
                    await asyncio.sleep(pause_s)
                    hop.start()
                case _:
                    broker = self._chance.choice(self._kafka.processes)
                    broker.kill()
                    await asyncio.sleep(pause_s / 4)
                    broker.start()
                    await asyncio.to_thread(self._kafka.wait_in_sync)

    async def _drained(self) -> bool:
        ends = await end_offsets(self._brokers, [self._source])
        passed = await group_offsets(self._brokers, TAG, self._source)
        return all(passed.get(partition, 0) >= end for (_, partition), end in ends.items())

    async def _settled(self) -> bool:
        return await settled(self._brokers, [self._sink])

    async def _judge(self) -> Anomalies:
        offsets = await group_offsets(self._brokers, TAG, self._source)
        values: list[int] = []
        passed: set[int] = set()

        def take(_topic: str, partition: int, records: list[Record]) -> None:
            values.extend(int(record.value or b"") for record in records)
            passed.update(int(r.value or b"") for r in records if r.offset < offsets.get(partition, 0))

        await read_topics(self._brokers, [self._source], take)
        commits = {key: kept for one in self._intentions for key, kept in one.commits.items()}
        return judge(values, await read_output(self._brokers, self._sink), commits, passed)


@asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do something while the context is entered; its failure is raised there."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()


@dataclass
class Found:
    """The verdict on a mix.

    Attributes:
        seed: of the faults.
        faults: that were made, by kind.
        ends: exit codes of instances that were not killed.
    """

    program: str
    seed: int
    seconds: int
    transactions: int
    faults: Counter[str]
    anomalies: Anomalies
    ends: list[int | None]

    @property
    def passed(self) -> bool:
        """Whether there is no anomaly, and no instance ended by itself."""
        return not any(self.anomalies) and not self.ends

    def plain(self) -> dict[str, object]:
        """Return it as JSON values."""
        faults = dict(sorted(self.faults.items()))
        return asdict(self) | {"faults": faults, "anomalies": self.anomalies._asdict()}


async def measure(directory: Path, logs: Path, transactions: int, seed: int) -> Found:
    """Run the mix on brokers of its own.

    Args:
        directory: for the brokers, empty.
        logs: folder for the instances' logs.
    """
    begun_s = time.monotonic()
    async with AsyncExitStack() as stack:
        kafka = await start(directory, PROGRAM.transaction_version, stack, brokers=3)
        mix = Mix(kafka, seed, logs)
        anomalies = await mix.run(transactions)
    seconds = round(time.monotonic() - begun_s)
    return Found(PROGRAM.name, seed, seconds, mix.transactions, mix.faults, anomalies, mix.ends)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--transactions", default=10_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=1, show_default=True, help="of the faults; their moments depend on the machine as well")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="folder for the instances' logs")
def main(transactions: int, seed: int, logs: Path | None) -> None:
    """Run thousands of transactions under a random mix of faults."""
    with tempfile.TemporaryDirectory(prefix="once-mix-") as name:
        found = uvloop.run(measure(Path(name), logs or Path(name), transactions, seed))
    print(json.dumps(found.plain(), indent=2))
    sys.exit(not found.passed)


if __name__ == "__main__":
    main(prog_name="python -m tests.drills.transactions.mix")
