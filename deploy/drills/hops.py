"""A consume-transform-produce hop under a drill: its topics, its processes, and what went through it.

The hop takes each record of one input partition to one of three output partitions, in transactions. A value is the
record's number, which is its input offset as well, so the output shows what was lost or doubled.
"""

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Self

from deploy import PROJECT_ROOT
from deploy.drills.clients.job import OUTPUT_PARTITIONS, Job
from deploy.drills.clients.raw import values_of
from deploy.drills.deliveries import duplicates, losses
from deploy.drills.drill import Anomaly
from deploy.drills.proxy.rules import error_codes
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually, settled
from deploy.local.process import ManagedProcess
from shared.kafka.client.errors import error_for, error_name
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import group_offsets
from shared.kafka.protocol.codec import Values

OURS: Final = "hop"
STOCK: Final = "stock_hop"
RECORDS: Final = 9
"""Of one step: three for each output partition."""
PROTECTED: Final = "with protection"
_NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


class Hops:
    """The hop's topics and processes; `prepared` makes them.

    Args:
        writer: of the input.

    Attributes:
        job: of instance 0.
        written: how many records the input has.
    """

    def __init__(self, stage: Stage, job: Job, writer: IdempotentWriter) -> None:
        self.job = job
        self.written = 0
        self._stage = stage
        self._writer = writer
        self._processes = 0

    @classmethod
    async def prepared(
        cls, stage: Stage, *, request_timeout_ms: int = 60_000, transaction_timeout_ms: int = 30_000
    ) -> Self:
        """Create the topics. Processes reach the brokers through the proxy, and are killed when the drill ends."""
        proxy = await stage.proxy()
        topics = [await stage.topic(OUTPUT_PARTITIONS) for _ in range(3)]
        timeouts = request_timeout_ms, transaction_timeout_ms
        job = Job(proxy.bootstrap_servers, topics[0], topics[1], topics[2], topics[0], *timeouts)
        writer = await stage.resources.enter_async_context(IdempotentWriter(stage.bootstrap_servers))
        return cls(stage, job, writer)

    def start(
        self, program: str = OURS, instance: str = "0", variables: Mapping[str, str] = _NO_VARIABLES
    ) -> ManagedProcess:
        """Start a program of deploy/drills/clients as an instance; `variables` go on top of its job's."""
        self._processes += 1
        name = f"{program}-{instance}-{self._processes}"
        job = self.job._replace(instance=instance).environment()
        environment = {**job, "ONCE_PARTITIONS": str(OUTPUT_PARTITIONS), **variables}
        argv = [sys.executable, "-m", f"deploy.drills.clients.{program}"]
        log = self._stage.directory / f"{self.job.group}-{name}.log"
        process = ManagedProcess(name, argv, environment, log, cwd=PROJECT_ROOT)
        self._stage.resources.callback(process.kill)
        process.start()
        return process

    def kill(self, process: ManagedProcess) -> None:
        """Kill a process by SIGKILL, and note it as a fault."""
        pid = process.pid
        process.kill()
        self._stage.step(f"SIGKILL of {process.name}")
        self._stage.evidence(
            f"SIGKILL of {process.name}", f"process {pid} ended by signal {-(process.returncode or 0)}"
        )

    async def write(self, records: int = RECORDS) -> None:
        """Write one batch of records to partition 0 of the input."""
        for _ in range(records):
            await self._writer.write(self.job.source, 0, b"key", b"%d" % self.written)
            self.written += 1
        await self._writer.flush()
        self._stage.journal.records = self.written

    async def output(self, *, committed: bool = True) -> list[bytes]:
        """Return the values in the output: what a read_committed reader sees, or all."""
        return await values_of(self._stage.access, self.job.sink, None, committed=committed)

    async def passed(self) -> int:
        """Return how many input records the group's offset is past."""
        return (await group_offsets(self._stage.bootstrap_servers, self.job.group, self.job.source)).get(0, 0)

    async def until_done(self, within_s: float = 60.0) -> None:
        """Wait until every record has a visible output, and no transaction is open.

        Raises:
            TimeoutError: not so within `within_s` seconds.
        """

        async def done() -> bool:
            values = await self.output()
            return len(set(values)) >= self.written and await settled(self._stage.access, [self.job.sink])

        await eventually(done, f"all {self.written} records in the output", within_s)

    async def until_passed(self, within_s: float = 60.0) -> None:
        """Wait until the group's offset is past the input; raises TimeoutError."""

        async def passed() -> bool:
            return await self.passed() == self.written

        await eventually(passed, f"the group of {self.job.group} has consumed {self.written} records", within_s)

    async def anomalies(self) -> dict[Anomaly, list[str]]:
        """Compare the output with the input that the group's offset is past."""
        values = await self.output()
        expected = [b"%d" % number for number in range(await self.passed())]
        return {Anomaly.DUPLICATE: duplicates(values), Anomaly.LOSS: losses(expected, values)}

    async def expect_exactly_once(self) -> None:
        """Note that nothing is doubled or lost, and nothing left to do."""
        note_anomalies(self._stage, await self.anomalies(), is_control=False)
        self._stage.expect("records consumed", await self.passed(), self.written)


def note_anomalies(stage: Stage, found: Mapping[Anomaly, list[str]], *, is_control: bool) -> None:
    """Note what a check found: a control's anomalies, or that the protected side has none."""
    for kind, where in found.items():
        if is_control:
            stage.anomaly(kind, where)
        else:
            stage.expect(f"{kind}, {PROTECTED}", where, [])


def errors_in(answers: Iterable[Values | None]) -> list[str]:
    """Return the errors in brokers' answers by Kafka's names, and an empty text for each success."""
    codes = [code for answer in answers if answer is not None for code in sorted(error_codes(answer))]
    return [error_name(error_for(code)()) if code else "" for code in codes]


async def until_settled(stage: Stage, topic: str, within_s: float = 30.0) -> float:
    """Wait until no transaction is open in a topic, and return the seconds waited; raises TimeoutError."""
    what = f"no transaction open in {topic}"
    return await eventually(lambda: settled(stage.access, [topic]), what, within_s)
