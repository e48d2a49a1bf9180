"""One cell of the table: a program under one fault.

1. The program commits a first transaction. A fault of InitProducerId is made before that, at the program's start.
2. Records are written, and the fault is made in the transaction that takes them.
3. What is late is delivered: with no transaction open, which is then awaited for longer than the transaction timeout;
   or within the transaction of further records, before one of its requests.
4. The program is stopped and started again: it goes on at the group's offset. It takes last records.
5. The output is compared with the input.
"""

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from deploy.drills.clients.job import Job
from deploy.drills.proxy.injection import Injection, NotInjectedError
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.rules import Hold, Part, Rule, error_codes
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.consumer import Tail
from shared.kafka.client.errors import error_for, error_name
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import group_offsets
from tests.drills.transactions.faults import ACTIONS, MOMENTS, Fault, Moment
from tests.drills.transactions.hop import Hop, Program
from tests.drills.transactions.intentions import Intentions
from tests.drills.transactions.judge import Anomalies, judge
from tests.drills.transactions.output import read_output
from tests.harness import eventually, settled

RECORDS: Final = 9  # of each step: three for each output partition
REQUEST_TIMEOUT_MS: Final = 3_000
TRANSACTION_TIMEOUT_MS: Final = 6_000
IDLE_S: Final = TRANSACTION_TIMEOUT_MS / 1000 + 3  # the coordinator looks for timed-out transactions every second
STEP_S: Final = 25.0  # past every timeout of a client, and a restart
MOMENT_S: Final = 15.0
LAST_S: Final = 45.0
NOT_SENT: Final = "not sent"
"""The evidence where the program sends no such request."""


@dataclass
class Outcome:
    """What one cell found.

    Attributes:
        fault: None where no fault was made, for comparison.
        is_injected: whether the proxy made it; False where the program sends no such request.
        evidence: what the proxy did, and the brokers' answer to what was late.
        ends: the program's exit codes; it was started again each time.
    """

    program: str
    fault: str | None
    is_injected: bool
    evidence: str
    anomalies: Anomalies
    ends: list[int | None]
    requests_per_transaction: float
    requests: dict[str, int]
    seconds: float

    def plain(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self) | {"anomalies": self.anomalies._asdict()}


class Cell:
    """A cell at work.

    Args:
        kafka: a cluster with the program's version of the protocol.
        tag: begins the names of the cell's topics, which are there, and of its group.
        argv: starts the program.
    """

    def __init__(
        self, kafka: LocalKafka, program: Program, fault: Fault | None, tag: str, argv: list[str], log: Path
    ) -> None:
        self._kafka = kafka
        self._brokers = kafka.bootstrap_servers
        self._program = program
        self._fault = fault
        self._source, self._sink, self._changelog = topics(tag)
        self._group = tag
        self._argv = argv
        self._log = log
        self._sent = 0
        self._seen: set[int] = set()
        self._transactional_id = program.transactional_id(tag)
        self._intentions = Intentions(self._transactional_id)
        self._notes: list[str] = []

    async def run(self) -> Outcome:
        """Go through all steps."""
        begun_s = time.monotonic()
        async with AsyncExitStack() as stack:
            self._proxy = await stack.enter_async_context(Proxy(self._brokers, self._intentions.observe))
            self._tail = await stack.enter_async_context(Tail(self._brokers, self._sink))
            self._writer = await stack.enter_async_context(IdempotentWriter(self._brokers))
            at_start = self._fault is not None and self._fault.api == "InitProducerId"
            injection = self._inject() if at_start else None
            self._hop = await stack.enter_async_context(Hop(self._argv, self._environment(), self._log))
            if injection is None:
                await self._step("first")
            else:
                await self._step_under(injection, "first")
            if self._fault is not None and injection is None:
                injection = self._inject()
                await self._step_under(injection, "faulty")
            if injection is None or injection.evidence.acts:
                if injection is None or self._fault is None or not self._fault.is_late:
                    await self._step("next")
                else:
                    await self._deliver(injection, MOMENTS[self._fault.api])
                await self._hop.restart()  # at once: a later transaction would correct the group's offset
                await self._step("last", LAST_S)
            if injection is not None:
                self._proxy.remove(injection)
            await self._hop.stop()
            anomalies = await self._judge()
        return Outcome(
            program=self._program.name,
            fault=None if self._fault is None else str(self._fault),
            is_injected=injection is not None and injection.evidence.done > 0,
            evidence="" if injection is None else self._evidence(injection),
            anomalies=anomalies,
            ends=self._hop.ends,
            requests_per_transaction=self._intentions.requests_per_transaction,
            requests=dict(self._intentions.requests),
            seconds=round(time.monotonic() - begun_s, 1),
        )

    def _environment(self) -> dict[str, str]:
        timeouts = REQUEST_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS
        used = self._source, self._sink, self._changelog
        return dict(Job(self._proxy.bootstrap_servers, *used, self._group, *timeouts).environment())

    def _inject(self) -> Injection:
        assert self._fault is not None
        action = ACTIONS[self._fault.kind]
        return self._proxy.add(Rule(api=self._fault.api, action=action, transactional_id=self._transactional_id))

    async def _step_under(self, injection: Injection, name: str) -> None:
        """Go through a step while the fault is made."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._step(name))
            if self._fault is not None and self._fault.kills:
                group.create_task(self._kill_broker(injection))

    async def _kill_broker(self, injection: Injection) -> None:
        """Kill the broker when the request or its answer is lost, and start it again."""
        with suppress(NotInjectedError):  # the program sends no such request
            await injection.done(1, MOMENT_S)
            [broker] = self._kafka.processes
            broker.kill()
            broker.start()
            await asyncio.to_thread(self._kafka.wait_ready)

    async def _step(self, name: str, within_s: float = STEP_S) -> None:
        """Write records and wait until their output is committed."""
        await self._write()
        await self._await_output(name, within_s)

    async def _write(self) -> None:
        for _ in range(RECORDS):
            await self._writer.write(self._source, 0, b"key", str(self._sent).encode())
            self._sent += 1
        await self._writer.flush()

    async def _await_output(self, name: str, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not self._seen.issuperset(range(self._sent)):
            if time.monotonic() > deadline_s:
                self._notes.append(f"no output of the {name} records within {within_s:.0f} s")
                return
            self._seen.update(int(record.value or b"") for record in await self._tail.poll(50))

    async def _deliver(self, injection: Injection, moment: Moment) -> None:
        """Deliver what is late at its moment, and commit further records."""
        if moment is Moment.IDLE:
            await self._await_complete()
            await self._release(injection)
            await asyncio.sleep(IDLE_S)  # the timeout of a transaction, if one was opened
            await self._step("next")
            return
        trigger = self._proxy.add(
            Rule(api=moment.value, action=Hold(Part.REQUEST), transactional_id=self._transactional_id)
        )
        await self._write()
        try:
            await trigger.acted(1, MOMENT_S)
        except NotInjectedError:
            self._notes.append(f"no {moment.value} followed within {MOMENT_S:.0f} s")
        await self._release(injection)
        self._proxy.remove(trigger)
        await self._await_output("next", STEP_S)

    async def _await_complete(self) -> None:
        """Wait until the coordinator takes the next transaction: the last one's markers are written."""

        async def complete() -> bool:
            seen = await look(brokers, [], only_open=True)
            return all(one.transactional_id != self._transactional_id for one in seen.transactions)

        async with Brokers(self._brokers) as brokers:
            await eventually(complete, f"no transaction of {self._transactional_id} open", MOMENT_S)

    async def _release(self, injection: Injection) -> None:
        injection.release()
        try:
            await injection.done(1, MOMENT_S)
        except NotInjectedError:
            self._notes.append(f"not answered within {MOMENT_S:.0f} s")

    def _evidence(self, injection: Injection) -> str:
        evidence = injection.evidence
        if not evidence.matches:
            return NOT_SENT
        texts = [f"{len(evidence.acts)} of {evidence.matches}"]
        assert self._fault is not None
        if self._fault.is_late:
            answers = [act.answer for act in evidence.acts if act.answer is not None]
            texts += [" ".join(error_name(error_for(code)()) for code in error_codes(answer)) for answer in answers]
        return "; ".join(texts + self._notes)

    async def _judge(self) -> Anomalies:
        deadline_s = time.monotonic() + IDLE_S + STEP_S
        while not await settled(self._brokers, [self._sink]):
            if time.monotonic() > deadline_s:
                self._notes.append("a transaction stays open")
                break
            await asyncio.sleep(0.2)
        passed = (await group_offsets(self._brokers, self._group, self._source)).get(0, 0)
        output = await read_output(self._brokers, self._sink)
        # A value is the record's number, and its offset
        return judge(range(self._sent), output, self._intentions.commits, range(passed))


def topics(tag: str) -> tuple[str, str, str]:
    """Return the names of a cell's topics: input, output, changelog."""
    return f"{tag}-in", f"{tag}-out", f"{tag}-changelog"
