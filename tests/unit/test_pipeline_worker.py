"""The worker of an instance, over brokers in memory: what it takes, where it goes back to, and what it gives up."""

import asyncio
import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from shared.eos.audit import Outcome
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, EosError, FatalError, UnknownOutcomeError
from shared.eos.records import Output, Record
from shared.eos.states import State
from shared.eos.store import Table
from shared.events.catalogue import PAYMENTS_ACCEPTED, TRANSFORM_PROGRESS
from shared.events.headers import SOURCE, Coordinates, Headers
from shared.kafka.client.cluster import Target
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.runtime import pipeline, worker
from shared.kafka.runtime.pipeline import Pipeline, PipelineWorker
from shared.kafka.runtime.scope import TransactionScope
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.kafka.runtime.worker import Membership
from shared.settings import RuntimeSettings
from tests.harness import eventually

OUTPUTS, LETTERS = "outputs", "letters"
TOO_LARGE: Final = "MessageSizeTooLargeError"


class BrokersInMemory:
    """The input, and what was committed.

    Attributes:
        input: records by partition.
        outputs: the input offsets of committed outputs, and those of letters, by partition.
        offsets: committed, by partition.
        refuse: called with the outputs of a transaction; the name of the error that refuses it, or "".
        end: what happens instead of a commit.
        restores: clear it to hold the restoring of a partition.
        unfetched: partitions whose records have not arrived.
        failure: of the fetcher.
        refused: how many transactions were.
        abort: what happens instead of an abort.
    """

    def __init__(self, counts: Mapping[int, int]) -> None:
        self.input = {
            partition: [
                Record(PAYMENTS_ACCEPTED, partition, offset, 0, None, b"", ((SOURCE, b"payments.raw:0:%d" % offset),))
                for offset in range(count)
            ]
            for partition, count in counts.items()
        }
        self.outputs: dict[int, list[int]] = {partition: [] for partition in counts}
        self.letters: dict[int, list[int]] = {partition: [] for partition in counts}
        self.offsets = dict.fromkeys(counts, 0)
        self.refuse: Callable[[list[Output]], str] = lambda _: ""
        self.end: Callable[[], Any] | None = None
        self.restores: dict[int, asyncio.Event] = {}
        self.unfetched: set[int] = set()
        self.failure: Exception | None = None
        self.refused = 0
        self.abort: Callable[[], Any] | None = None
        self.outcomes: dict[int, Outcome] = {}

    async def drained(self) -> bool:
        return all(self.offsets[partition] == len(records) for partition, records in self.input.items())


class ProducerInMemory:
    """A producer of `BrokersInMemory`."""

    epoch = (7, 0)

    def __init__(self, brokers: BrokersInMemory) -> None:
        self._brokers = brokers
        self.state = State.READY
        self._outputs: list[Output] = []
        self._offsets: dict[Target, int] = {}

    def reach(self, _: str) -> None:
        pass

    async def begin(self) -> None:
        assert self.state is State.READY
        self.state, self._outputs, self._offsets = State.IN_TRANSACTION, [], {}

    def append(self, outputs: Iterable[Output], _: int) -> None:
        self._outputs += outputs

    async def flush(self) -> None:
        if name := self._brokers.refuse(self._outputs):
            self._brokers.refused += 1
            self.state = State.ABORTABLE_ERROR
            raise AbortableError(name, name)

    async def send_offsets(self, _: GroupMember, offsets: dict[Target, int], __: str) -> None:
        self._offsets = offsets

    async def commit(self) -> None:
        if self._brokers.end is not None:
            await self._brokers.end()
        for output in self._outputs:
            if output.topic != TRANSFORM_PROGRESS:
                to = self._brokers.letters if output.topic == LETTERS else self._brokers.outputs
                to[output.partition].append(int(output.value or b""))
        self._brokers.offsets |= {partition: offset for (_, partition), offset in self._offsets.items()}
        self.state = State.READY

    async def abort(self, _: str = "") -> None:
        if self._brokers.abort is not None:
            await self._brokers.abort()
        self.state = State.READY

    async def discard(self) -> None:
        self.state = State.CLOSED


class ScopeInMemory(TransactionScope):
    """A scope whose producer is in memory."""

    brokers: BrokersInMemory

    def _new_producer(self) -> Any:
        return ProducerInMemory(self.brokers)

    async def init(self) -> None:
        pass

    async def recover(self, task: Task, **_: Any) -> None:
        if (restores := self.brokers.restores.get(task.partition)) is not None:
            await restores.wait()
        task.next_offset = self.brokers.offsets[task.partition]

    async def resolve(self, tasks: Iterable[Task]) -> dict[Task, Outcome]:
        self.producer = self._new_producer()
        found = {task: self.brokers.outcomes[task.partition] for task in tasks if task.open is not None}
        for task, outcome in found.items():
            task.commit() if outcome is Outcome.COMMITTED else task.rollback()
        return found


class FetcherInMemory:
    """A fetcher of `BrokersInMemory`."""

    brokers: BrokersInMemory

    def __init__(self, _: object) -> None:
        self.positions: dict[Target, int] = {}
        self._woken = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def add(self, target: Target, offset: int) -> None:
        self.positions[target] = offset
        self._woken.set()

    def remove(self, target: Target) -> None:
        self.positions.pop(target, None)

    def take(self, target: Target, records_max: int | None = None) -> list[Record]:
        at = self.positions[target]
        records = self.brokers.input[target[1]][at:][:records_max]
        self.positions[target] = at + len(records)
        return records

    def state(self, _: Target) -> None:
        return None

    def waiting(self) -> list[Target]:
        brokers = self.brokers
        return [
            target
            for target, at in self.positions.items()
            if at < len(brokers.input[target[1]]) and target[1] not in brokers.unfetched
        ]

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, _: float | None = None) -> None:
        if not self.waiting() and self.brokers.failure is None:
            await self._woken.wait()
        self._woken.clear()
        if self.brokers.failure is not None:
            raise self.brokers.failure
        await asyncio.sleep(0)


def source_of(record: Record) -> Headers:
    """Return the headers of an output that is made from a record."""
    return ((SOURCE, Coordinates(record.topic, record.partition, record.offset).encode()),)


class CountingHandler:
    """Counts the records of a partition, and makes one output of each."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.store: Table[int] = Table(b"count/", lambda count: b"%d" % count, int, lambda count: count)

    def process(self, record: Record) -> list[Output]:
        self.store.put("records", self.count + 1)
        return [Output(OUTPUTS, self.partition, None, b"%d" % record.offset, source_of(record))]

    @property
    def count(self) -> int:
        return self.store.get("records") or 0


def letter(handler: CountingHandler, record: Record, _: str) -> list[Output]:
    return [Output(LETTERS, handler.partition, None, b"%d" % record.offset, source_of(record))]


class Rig:
    """A worker over brokers in memory.

    Attributes:
        beats: how often a heartbeat was asked for.
        observed: the input offsets of the outputs that were observed.
        stores: of each handler that was made and is still kept.
    """

    def __init__(self, brokers: BrokersInMemory) -> None:
        self.brokers = brokers
        self.beats = 0
        self.observed: list[int] = []
        self.stores = WeakSet[Table[int]]()
        settings = RuntimeSettings(bootstrap_servers="127.0.0.1:1")
        membership = Membership(
            settings, lambda: GroupMember("transform", "one", 1), self._beat, CrashPoints("", lambda _: None)
        )
        work = Pipeline(
            service="transform",
            topic=PAYMENTS_ACCEPTED,
            changelog=TRANSFORM_PROGRESS,
            handler=self._handler,
            refuse=letter,
            observe=lambda outputs: self.observed.extend(int(output.value or b"") for output in outputs),
            outputs=(OUTPUTS, LETTERS),
        )
        self.worker = PipelineWorker(work, membership)
        self.running: asyncio.Task[None]

    def _beat(self) -> None:
        self.beats += 1

    def _handler(self, partition: int) -> CountingHandler:
        handler = CountingHandler(partition)
        self.stores.add(handler.store)
        return handler

    def start(self, partitions: Collection[int] | None = None) -> None:
        self.worker.assign(set(self.brokers.input if partitions is None else partitions))
        self.running = asyncio.create_task(self.worker.run())

    async def reached(self, reached: Callable[[], bool], what: str) -> None:
        async def found() -> bool:
            if self.running.done():
                self.running.result()
            return reached()

        await eventually(found, what)

    async def drain(self) -> None:
        """Wait until all input is processed, then stop."""
        drained = self.brokers.input.items()
        await self.reached(
            lambda: all(self.brokers.offsets[number] == len(records) for number, records in drained), "drained"
        )
        await self.stop()

    async def stop(self) -> None:
        self.worker.stop()
        await self.running

    def assert_once(self, *, letters: Mapping[int, Collection[int]] | None = None) -> None:
        """Fail unless each input record has one output, in order, or one letter."""
        refused = letters or {}
        for number, records in self.brokers.input.items():
            assert self.brokers.letters[number] == sorted(refused.get(number, ()))
            expected = [record.offset for record in records if record.offset not in refused.get(number, ())]
            assert self.brokers.outputs[number] == expected


@contextmanager
def in_memory(brokers: BrokersInMemory) -> Iterator[None]:
    """Have workers that are made in the context use these brokers, and go on at once after an abort."""
    scope = type("Scope", (ScopeInMemory,), {"brokers": brokers})
    fetcher = type("Fetcher", (FetcherInMemory,), {"brokers": brokers})
    with (
        mock.patch.object(pipeline, "TransactionScope", scope),
        mock.patch.object(worker, "Fetcher", fetcher),
        mock.patch.object(worker, "ABORT_BACKOFF_S", 0),
    ):
        yield


def offsets_of(outputs: Iterable[Output]) -> set[tuple[int, int]]:
    return {(output.partition, int(output.value or b"")) for output in outputs if output.topic == OUTPUTS}


bad_offsets = st.dictionaries(st.integers(0, 2), st.sets(st.integers(0, 39), max_size=4), max_size=3)


@given(st.fixed_dictionaries({number: st.integers(0, 40) for number in range(3)}), bad_offsets)
def test_each_record_that_no_topic_takes_is_replaced_and_no_other_one(
    counts: dict[int, int], bad: dict[int, set[int]]
) -> None:
    present = {number: {at for at in found if at < counts[number]} for number, found in bad.items()}
    large = {(number, at) for number, found in present.items() for at in found}

    async def history() -> None:
        brokers = BrokersInMemory(counts)
        brokers.refuse = lambda outputs: TOO_LARGE if large & offsets_of(outputs) else ""
        with in_memory(brokers):
            rig = Rig(brokers)
            rig.start()
            await rig.drain()
        rig.assert_once(letters=present)
        # One for all partitions, one for each of them, and a search for each of the records
        assert brokers.refused <= 1 + len(counts) + 7 * len(large)

    asyncio.run(history())


async def test_other_partitions_go_on_while_records_of_an_isolated_one_are_fetched() -> None:
    brokers = BrokersInMemory({0: 8, 1: 0})

    def refuse(outputs: list[Output]) -> str:
        if (0, 5) not in offsets_of(outputs):
            return ""
        if not brokers.input[1]:
            brokers.input[1] = BrokersInMemory({1: 4}).input[1]
            brokers.unfetched.add(0)
        return TOO_LARGE

    brokers.refuse = refuse
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: brokers.offsets[1] == 4, "the other partition is processed")
        assert brokers.offsets[0] == 0
        brokers.unfetched.clear()
        rig.worker._fetcher.wake()
        await rig.drain()
    rig.assert_once(letters={0: {5}})


async def test_a_search_begins_again_after_an_unknown_outcome() -> None:
    """The record that was refused alone may have been replaced; the next one that is refused is another one."""
    brokers = BrokersInMemory({0: 8})
    brokers.refuse = lambda outputs: TOO_LARGE if offsets_of(outputs) & {(0, 2), (0, 3)} else ""
    brokers.outcomes = {0: Outcome.COMMITTED}
    unknown: list[int] = []

    async def end() -> None:
        if brokers.offsets[0] == 2 and not unknown:
            unknown.append(2)
            brokers.offsets[0] = 3
            brokers.letters[0] = [2]
            raise UnknownOutcomeError("EndTxn was not answered in time")

    brokers.end = end
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.drain()
    assert unknown == [2]
    rig.assert_once(letters={0: {2, 3}})


async def test_a_refused_transaction_is_done_again_from_where_it_began() -> None:
    brokers = BrokersInMemory({0: 3, 1: 4})
    refusals = iter(["CorruptRecordException", "InvalidTxnState"])
    brokers.refuse = lambda _: next(refusals, "")
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.drain()
    assert brokers.refused == 2
    rig.assert_once()


async def test_the_same_batch_that_is_refused_again_and_again_is_a_defect() -> None:
    brokers = BrokersInMemory({0: 3, 1: 4})
    brokers.refuse = lambda _: "CorruptRecordException"
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        with pytest.raises(FatalError, match=rf"{PAYMENTS_ACCEPTED}:0:0.* aborted 3 times: CorruptRecordException"):
            await rig.running
    assert rig.beats == 0


async def test_a_letter_that_no_topic_takes_is_a_defect() -> None:
    brokers = BrokersInMemory({0: 3})
    brokers.refuse = lambda outputs: TOO_LARGE if outputs else ""
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        with pytest.raises(FatalError, match=f"aborted 3 times: {TOO_LARGE}"):
            await rig.running


@pytest.mark.parametrize("name", ["IllegalGenerationError", "UnknownMemberIdError"])
async def test_offsets_that_the_group_refuses_are_no_defect_and_ask_for_a_heartbeat(name: str) -> None:
    brokers = BrokersInMemory({0: 3})
    refusals = iter([name] * (2 * worker.ABORTS_IN_A_ROW_MAX))
    brokers.refuse = lambda _: next(refusals, "")
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.drain()
    assert rig.beats == brokers.refused == 2 * worker.ABORTS_IN_A_ROW_MAX
    rig.assert_once()


async def test_a_denial_ends_the_work_at_once() -> None:
    brokers = BrokersInMemory({0: 3})
    brokers.refuse = lambda _: "TopicAuthorizationFailedError"
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        with pytest.raises(AbortableError, match="TopicAuthorizationFailedError"):
            await rig.running
    assert brokers.refused == 1


async def test_a_fetch_that_fails_ends_the_work() -> None:
    brokers = BrokersInMemory({0: 3})
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: brokers.offsets[0] == 3, "all processed")
        brokers.failure = KafkaUnavailableError("no broker answers")
        rig.worker._fetcher.wake()
        with pytest.raises(UnknownOutcomeError, match="no broker answers"):
            await rig.running
    assert rig.worker.ready == set()


async def test_a_partition_is_released_between_transactions() -> None:
    brokers = BrokersInMemory({0: 3, 1: 3})
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        ending.set()
        await may_end.wait()

    brokers.end = end
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await ending.wait()
        revoking = asyncio.create_task(rig.worker.revoke({0}))
        await asyncio.sleep(0)
        assert rig.worker.ready == {1}
        await asyncio.wait([revoking], timeout=0.05)
        assert not revoking.done(), "the transaction is open"
        may_end.set()
        await revoking
        assert brokers.offsets[0] == 3
        assert set(rig.worker.tasks) == {1}
        brokers.input[0] += BrokersInMemory({0: 6}).input[0][3:]
        brokers.input[1] += BrokersInMemory({1: 6}).input[1][3:]
        rig.worker._fetcher.wake()
        await rig.reached(lambda: brokers.offsets[1] == 6, "the partition that stays goes on")
        await rig.stop()
    assert brokers.offsets[0] == 3


async def test_partitions_go_on_while_others_are_restored() -> None:
    brokers = BrokersInMemory({0: 3, 1: 3})
    brokers.restores = {1: asyncio.Event()}
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: brokers.offsets[0] == 3, "the restored partition is processed")
        assert rig.worker.ready == {0}
        brokers.restores[1].set()
        await rig.drain()
    rig.assert_once()


async def test_a_partition_that_is_revoked_while_it_is_restored_is_released_at_once() -> None:
    brokers = BrokersInMemory({0: 3, 1: 3})
    brokers.restores = {1: asyncio.Event()}
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.worker.revoke({1})
        brokers.restores[1].set()
        await rig.reached(lambda: brokers.offsets[0] == 3, "the other partition is processed")
        await rig.stop()
    assert brokers.offsets == {0: 3, 1: 0}


async def test_after_an_unknown_outcome_each_partition_goes_on_from_what_is_known() -> None:
    """A committed one behind its records, an aborted one before them, a torn one from its changelog."""
    brokers = BrokersInMemory({0: 3, 1: 3, 2: 3})
    brokers.outcomes = {0: Outcome.COMMITTED, 1: Outcome.ABORTED, 2: Outcome.TORN}

    async def end() -> None:
        brokers.end = None
        brokers.offsets |= {0: 3, 2: 3}  # the torn one is completed when it is restored
        brokers.outputs |= {0: [0, 1, 2], 2: [0, 1, 2]}
        raise UnknownOutcomeError("EndTxn was not answered in time")

    brokers.end = end
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: brokers.offsets[1] == 3 and len(rig.worker.ready) == 3, "all go on")
        for number in range(3):
            brokers.input[number] += BrokersInMemory({number: 5}).input[number][3:]
        rig.worker._fetcher.wake()
        tasks = dict(rig.worker.tasks)
        counted = {number: task.handler for number, task in tasks.items()}
        await rig.drain()
    rig.assert_once()
    # What a restored state has is the changelog's, which is not kept here
    assert [getattr(counted[number], "count", None) for number in range(3)] == [5, 5, 2]


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED])
async def test_a_transaction_is_counted_once_whatever_its_commit_answers(outcome: Outcome) -> None:
    brokers = BrokersInMemory({0: 3})
    brokers.outcomes = {0: outcome}

    async def end() -> None:
        brokers.end = None
        if outcome is Outcome.COMMITTED:
            brokers.offsets, brokers.outputs = {0: 3}, {0: [0, 1, 2]}
        raise UnknownOutcomeError("the coordinator moved")

    brokers.end = end
    name, topic = "kafka_consumer_records_consumed_total", {"topic": PAYMENTS_ACCEPTED}
    before = REGISTRY.get_sample_value(name, topic) or 0
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.drain()
    rig.assert_once()
    assert rig.observed == [0, 1, 2]
    assert REGISTRY.get_sample_value(name, topic) == before + 3


async def test_an_abort_without_an_answer_is_resolved_in_place() -> None:
    brokers = BrokersInMemory({0: 3, 1: 3})
    brokers.outcomes = {0: Outcome.ABORTED, 1: Outcome.ABORTED}
    refusals = iter(["CorruptRecordException"])
    brokers.refuse = lambda _: next(refusals, "")

    async def abort() -> None:
        brokers.abort = None
        raise UnknownOutcomeError("the coordinator moved")

    brokers.abort = abort
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: rig.worker.ready == {0, 1}, "both are taken over")
        tasks = dict(rig.worker.tasks)
        await rig.reached(lambda: brokers.offsets == {0: 3, 1: 3}, "processed")
        assert rig.worker.tasks == tasks, "no partition was given up"
        await rig.stop()
    assert brokers.refused == 1
    rig.assert_once()


async def test_the_state_of_a_released_partition_is_not_kept() -> None:
    brokers = BrokersInMemory({0: 3, 1: 3, 2: 3})
    brokers.restores = {2: asyncio.Event()}
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        await rig.reached(lambda: brokers.offsets == {0: 3, 1: 3, 2: 0}, "processed")
        await rig.worker.revoke({1, 2})

        async def is_gone() -> bool:
            gc.collect()
            return [id(store) for store in rig.stores] == [id(rig.worker.tasks[0].store)]

        await eventually(is_gone, "one state is left")
        await rig.stop()


async def test_an_open_transaction_is_aborted_when_the_work_fails() -> None:
    brokers = BrokersInMemory({0: 3})

    async def end() -> None:
        raise FatalError("a defect")

    brokers.end = end
    with in_memory(brokers):
        rig = Rig(brokers)
        rig.start()
        with pytest.raises(EosError, match="a defect"):
            await rig.running
        assert rig.worker._scope.producer.state is State.READY
    assert brokers.outputs[0] == []
