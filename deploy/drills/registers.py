"""A workload on append-only registers with the project's own clients, recorded as a history.

Each writer appends values to some partitions in a transaction, and commits it, or aborts it on purpose. Now and then
another producer with the writer's transactional.id is initialised within a transaction, and the first one tries to
commit nevertheless. Readers follow all partitions.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, Final

from deploy.drills.checker import Fate, fates
from deploy.drills.history import Event, Function, History, Look, Type, Value
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import AbortableError, EosError, FatalError, FencedError
from shared.eos.records import Output, Record
from shared.kafka.admin.transactions import offsets_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import read_topics
from shared.kafka.runtime.producer import TransactionalProducer

WRITERS, READERS, PARTITIONS = 3, 2, 3
TRANSACTION_TIMEOUT_MS: Final = 10_000
SETTLED_S: Final = 60.0
_INIT_S: Final = 60.0
_VALUES_MAX: Final = 6
_ABORTED, _SUCCEEDED = 0.2, 0.03
_LOOK_S: Final = 0.5
_ANSWER_S: Final = 1.0


class Registers:
    """Writers and readers of one topic while `run` is entered.

    Args:
        name: begins the transactional.ids.
        now_s: returns the seconds since the history began.
        pause_s: mean time between a writer's transactions.
        committed: whether readers are read_committed; False is a control.

    Attributes:
        history: so far; complete when `run` has been left.
        settled: whether in the end no transaction was open, and every reader had read everything.
    """

    def __init__(
        self,
        access: Bootstrap,
        topic: str,
        name: str,
        seed: int,
        now_s: Callable[[], float],
        *,
        pause_s: float = 0.05,
        committed: bool = True,
    ) -> None:
        self._access = access
        self._topic = topic
        self._name = name
        self._chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
        self._now_s = now_s
        self._pause_s = pause_s
        self._committed = committed
        self._targets: list[Target] = [(topic, number) for number in range(PARTITIONS)]
        self._over = asyncio.Event()
        self._made = 0
        self._readers: dict[str, dict[Target, int]] = {}
        self.history = History()
        self.settled = False

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Work until the context is left; then wait until every transaction has ended, and read the logs."""
        async with AsyncExitStack() as background:
            looks = await background.enter_async_context(_background(self._look()))
            readers = [
                await background.enter_async_context(_background(self._read(f"reader-{number}")))
                for number in range(READERS)
            ]
            writers = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]
            try:
                yield
                self._over.set()
                await asyncio.gather(*writers)
                self.settled = await self._settle([looks, *readers])
            finally:
                for writer in writers:
                    writer.cancel()
                await asyncio.wait(writers)
        await read_topics(self._access, [self._topic], self._take)
        self.history.is_complete = True

    def committed(self) -> int:
        """Return how many transactions were committed so far."""
        return fates(self.history)[Fate.COMMITTED]

    def _take(self, _topic: str, partition: int, records: list[Record]) -> None:
        self.history.log += [_value(partition, record) for record in records]

    def _note(self, process: str, kind: Type, function: Function, **parts: Any) -> None:
        self.history.events.append(Event(self._now_s(), process, kind, function, **parts))

    # Writers

    async def _write(self, number: int) -> None:
        """Make transactions, by another producer after each that cannot go on."""
        writer = _Writer(self, f"{self._name}-{number}")
        try:
            while not self._over.is_set():
                await writer.transaction()
                await asyncio.sleep(self._chance.expovariate(1 / self._pause_s))
        finally:
            await writer.close()

    def number(self) -> int:
        """Return a number that was not used before."""
        self._made += 1
        return self._made

    async def attempt(self, process: str, function: Function, work: Coroutine[Any, Any, None], **parts: Any) -> Type:
        """Do an operation, and note that it was invoked and how it was completed."""
        self._note(process, Type.INVOKE, function, **parts)
        kind, error = Type.OK, ""
        try:
            await work
        except (AbortableError, FencedError, FatalError) as failure:
            kind, error = Type.FAIL, str(failure)
        except EosError as failure:
            kind, error = Type.INFO, str(failure)
        self._note(process, kind, function, **parts, error=error)
        return kind

    def producer(self, transactional_id: str) -> TransactionalProducer:
        """Return another producer."""
        return TransactionalProducer(self._access, transactional_id, TRANSACTION_TIMEOUT_MS, NO_CRASHES)

    def outputs(self) -> tuple[list[Value], list[Output]]:
        """Choose the values of a request, and return them with their records."""
        count = self._chance.randint(1, _VALUES_MAX)
        values = [Value(self._chance.randrange(PARTITIONS), self.number()) for _ in range(count)]
        return values, [Output(self._topic, value.partition, None, str(value.value).encode(), ()) for value in values]

    def happens(self, probability: float) -> bool:
        """Choose whether something happens."""
        return self._chance.random() < probability

    # Readers

    async def _read(self, process: str) -> None:
        positions = self._readers[process] = dict.fromkeys(self._targets, 0)
        while True:
            self._note(process, Type.INVOKE, Function.POLL)
            try:
                async with Cluster(self._access, client_id=process) as cluster:
                    await cluster.partitions([self._topic])
                    await self._follow(cluster, process, positions)
            except KafkaUnavailableError as error:
                self._note(process, Type.FAIL, Function.POLL, error=str(error))

    async def _follow(self, cluster: Cluster, process: str, positions: dict[Target, int]) -> None:
        async with aclosing(pages(cluster, positions, committed=self._committed)) as read:
            async for page in read:
                records = [
                    record for batch in page.batches if not batch.is_control for record in batch.records(page.target)
                ]
                values = [
                    _value(record.partition, record) for record in records if record.offset >= positions[page.target]
                ]
                positions[page.target] = max(positions[page.target], page.next_offset)
                if values:
                    self._note(process, Type.OK, Function.POLL, values=values)
                    self._note(process, Type.INVOKE, Function.POLL)

    async def _look(self) -> None:
        async with Brokers(self._access, client_id=f"{self._name}-looks", answer_s=_ANSWER_S) as brokers:
            while True:
                with suppress(KafkaUnavailableError):  # the checker takes a time without looks for unknown
                    found, _ = await offsets_of(brokers, self._targets)
                    at_s = self._now_s()
                    self.history.looks += [
                        Look(at_s, partition, one.stable, one.end) for (_, partition), one in found.items()
                    ]
                await asyncio.sleep(_LOOK_S)

    async def _settle(self, working: list["asyncio.Task[None]"]) -> bool:
        """Wait until no transaction is open and readers have read everything, and return whether that is so."""
        end_s = time.monotonic() + SETTLED_S
        seen = len(self.history.looks)
        while time.monotonic() < end_s and not any(task.done() for task in working):
            await asyncio.sleep(_LOOK_S)
            last = {look.partition: look for look in self.history.looks[seen:]}
            read = [min(positions[target] for positions in self._readers.values()) for target in self._targets]
            if len(last) == PARTITIONS and all(
                look.stable == look.end <= read[partition] for partition, look in last.items()
            ):
                return True
        return False


class _Writer:
    """A writer: the producers of one transactional.id, one after the other."""

    def __init__(self, registers: Registers, transactional_id: str) -> None:
        self._registers = registers
        self._transactional_id = transactional_id
        self._producer: TransactionalProducer | None = None
        self._process = ""

    async def transaction(self) -> None:
        """Make one transaction: append, and commit or abort."""
        registers = self._registers
        producer = self._producer or await self._init()
        if producer is None:
            return
        number = registers.number()
        await producer.begin()
        for _ in range(2 if registers.happens(0.5) else 1):
            values, outputs = registers.outputs()
            producer.append(outputs, time.time_ns() // 1_000_000)
            appended = await self._attempt(Function.APPEND, producer.flush(), transaction=number, values=values)
            if appended is not Type.OK:
                break
        if appended is Type.OK and registers.happens(_SUCCEEDED):
            await self._succeeded(producer, number)
        elif appended is Type.OK and not registers.happens(_ABORTED):
            await self._ended(Function.COMMIT, producer.commit(), number)
        elif appended is Type.INFO:
            await self.close()
        else:
            await self._ended(Function.ABORT, producer.abort(), number)

    async def close(self) -> None:
        """Discard the producer; the next one's initialisation ends its transaction."""
        if self._producer is not None:
            await self._producer.discard()
            self._producer = None

    async def _init(self) -> TransactionalProducer | None:
        self._process = f"{self._transactional_id}.{self._registers.number()}"
        self._producer = self._registers.producer(self._transactional_id)
        init = self._producer.init(_INIT_S)
        if await self._attempt(Function.INIT, init, transactional_id=self._transactional_id) is not Type.OK:
            await self.close()
        return self._producer

    async def _succeeded(self, producer: TransactionalProducer, number: int) -> None:
        """Initialise a successor, and commit nevertheless: the broker must refuse that."""
        process = self._process
        if await self._init() is not None:
            await self._registers.attempt(process, Function.COMMIT, producer.commit(), transaction=number)
        await producer.discard()

    async def _ended(self, function: Function, work: Coroutine[Any, Any, None], number: int) -> None:
        if await self._attempt(function, work, transaction=number) is not Type.OK:
            await self.close()

    async def _attempt(self, function: Function, work: Coroutine[Any, Any, None], **parts: Any) -> Type:
        return await self._registers.attempt(self._process, function, work, **parts)


def _value(partition: int, record: Record) -> Value:
    return Value(partition, int(record.value or b""), record.offset)


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Do work that does not end by itself while the context is entered; its failure is raised when it is left."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
