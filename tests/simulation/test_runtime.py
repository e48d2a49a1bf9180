"""What the runtime does where brokers or its own code fail at a certain moment, each a history of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, RejoinError, UnknownOutcomeError
from shared.eos.records import Output
from shared.events import catalogue
from shared.events.catalogue import PAYMENTS_ACCEPTED
from shared.events.validation import key_of
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.client.measured import SEQUENCES
from shared.kafka.client.reader import group_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.scope import now_ms
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract.helpers import committed
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation import coordinator, transactions
from tests.simulation.coordinator import LATE
from tests.simulation.errors import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS
from tests.simulation.faults import Delay, Orphan, Troubles
from tests.simulation.loop import Process, outside
from tests.simulation.test_services import accepted, ingest
from tests.simulation.transactions import Decision
from tests.simulation.world import SERVERS, World, history

TIMEOUT_MS = 10_000
ACCEPTED = (PAYMENTS_ACCEPTED, 0)
WRITER = "writer"


def writer() -> TransactionalProducer:
    return TransactionalProducer(SERVERS, WRITER, TIMEOUT_MS, CrashPoints("", lambda _: None))


def by_writer(
    main: Callable[[World, TransactionalProducer], Coroutine[Any, Any, None]], versions: Iterable[int] = (1, 2)
) -> None:
    """Run a history of one producer, in a process of its own, that is initialised; one for each transaction.version."""

    async def whole(world: World) -> None:
        async def work() -> None:
            producer = writer()
            await producer.init(30)
            await main(world, producer)
            await producer.discard()

        await Process(world.network.loop, WRITER).start(work())

    for version in versions:
        history(whole, transaction_version=version)


async def write(producer: TransactionalProducer, *values: bytes) -> None:
    """Append records to the open transaction, and send them."""
    producer.append([Output(*ACCEPTED, b"key", value, ()) for value in values], 0)
    await producer.flush()


def test_a_transaction_of_slow_answers_ends_before_its_coordinator_aborts_it() -> None:
    """Each answer is in time by itself, and all of them are not: the instance rejoins, and is not fenced."""

    async def main(world: World) -> None:
        troubles = world.network.trouble = Troubles()
        stop = asyncio.Event()
        service = Process(world.network.loop, "ingest-0").start(ingest(0, stop))
        await asyncio.sleep(5)
        for api in ("Produce", "TxnOffsetCommit"):
            troubles.add(Delay(0.0, "ingest-0", api, "answer", 6, 6.0))
        await send_raw(SERVERS, payments("slow", 60))
        await asyncio.sleep(20)
        troubles.clear()
        await asyncio.sleep(60)
        ids = await accepted()
        assert len(set(ids)) == len(ids) == 60
        stop.set()
        assert await service == 0

    history(main)


@pytest.mark.parametrize("step", ["flush", "commit"])
def test_a_process_that_was_stopped_for_longer_than_its_transaction_is_not_fenced(step: str) -> None:
    """Its coordinator aborted the transaction under the next epoch, without another producer."""

    async def main(world: World, producer: TransactionalProducer) -> None:
        [process] = [process for process in world.network.loop.processes if process.name == WRITER]
        await producer.begin()
        await write(producer, b"first")
        world.network.loop.call_soon(process.pause, context=outside())
        world.network.loop.call_later(60, process.resume, context=outside())
        await asyncio.sleep(0)
        with pytest.raises(UnknownOutcomeError):
            await (write(producer, b"second") if step == "flush" else producer.commit())

    by_writer(main)


def test_a_producer_that_may_have_fenced_itself_does_not_end_as_fenced() -> None:
    """Its first InitProducerId arrives after the second one."""

    async def main(world: World) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, WRITER, "InitProducerId", 1, 3.0))

        async def work() -> None:
            producer = writer()
            await producer.init(30)
            await asyncio.sleep(5)
            await producer.begin()
            with pytest.raises(RejoinError, match="its own request"):
                await write(producer, b"first")
            await producer.discard()

        await Process(world.network.loop, WRITER).start(work())

    history(main)


def test_a_transaction_whose_coordinator_moved_has_an_unknown_outcome() -> None:
    """A former coordinator may have answered for partitions that its successor does not know, and does not end."""

    async def main(world: World, producer: TransactionalProducer) -> None:
        await producer.begin()
        await write(producer, b"first")
        states = world.cluster.topic(STATE_TOPIC)
        state = states[partition_of(WRITER, len(states))]
        world.cluster.move(state, next(node for node in state.replicas if node != state.leader))
        with pytest.raises(UnknownOutcomeError, match="the coordinator moved"):
            await producer.commit()

    by_writer(main)


def test_a_new_owner_aborts_what_was_left_open_in_its_outputs() -> None:
    """Its first commit would otherwise make those records visible as well."""

    async def main(world: World) -> None:
        stop = asyncio.Event()
        former = Process(world.network.loop, "ingest-0").start(ingest(0, stop))
        await send_raw(SERVERS, payments("before", 60))
        await asyncio.sleep(10)
        stop.set()
        assert await former == 0
        written = world.cluster.partitions[ACCEPTED]
        [last] = [batch for batch in written.log.read(0, written.log.end, 2**31) if not batch.is_control][-1:]
        state = written.log.producers[last.producer_id]
        left = record_batch(
            [(b"key", b"left open")],
            last.producer_id,
            state.epoch,
            state.batches[-1].last_sequence + 1 if state.batches else 0,
            attributes=TRANSACTIONAL,
            timestamp_ms=now_ms(),
        )
        written.log.append(left)
        world.cluster.appended(written)

        successor = Process(world.network.loop, "ingest-0").start(ingest(0, stop := asyncio.Event()))
        await send_raw(SERVERS, payments("after", 60))
        await asyncio.sleep(30)
        assert written.log.last_stable_offset == written.log.end
        values = await committed(SERVERS, *ACCEPTED)
        assert b"left open" not in values
        assert len(set(await accepted())) == len(await accepted()) == 120
        stop.set()
        assert await successor == 0

    history(main)


@contextmanager
def unknown_to_its_coordinator(target: tuple[str, int]) -> Iterator[None]:
    """Transactions end without a marker in this partition."""

    def end(*args: Any) -> Decision:
        decision = transactions.end_under_next_epoch(*args)
        if decision.next is None:
            return decision
        return decision._replace(next=replace(decision.next, partitions=decision.next.partitions - {target}))

    with mock.patch.object(coordinator, "end_under_next_epoch", end):
        yield


def test_a_transaction_that_left_a_part_open_is_completed_by_the_next_owner() -> None:
    """Its state and its offset are committed, and it ended by its owner's own request."""

    async def main(world: World) -> None:
        stop = asyncio.Event()
        former = Process(world.network.loop, "ingest-0").start(ingest(0, stop))
        await send_raw(SERVERS, payments("before", 60))
        await asyncio.sleep(10)
        with unknown_to_its_coordinator(ACCEPTED):
            [value] = [value for value in payments("skipped", 60) if key_of(value, PARTITIONS)[1] == ACCEPTED[1]][:1]
            await send_raw(SERVERS, [value])
            await asyncio.sleep(5)
        assert len(await accepted()) == 60
        stop.set()
        assert await former == 0

        successor = Process(world.network.loop, "ingest-0").start(ingest(0, stop := asyncio.Event()))
        await asyncio.sleep(30)
        ids = await accepted()
        assert len(set(ids)) == len(ids) == 61
        stop.set()
        assert await successor == 0

    history(main)


def test_sequences_go_on_at_zero_after_the_last_one() -> None:
    """With version 2 of the protocol they begin at zero in each transaction."""

    async def main(_: World, producer: TransactionalProducer) -> None:
        producer._sequences[ACCEPTED] = SEQUENCES - 10
        for number in range(3):
            await producer.begin()
            await write(producer, *(b"%d" % number for _ in range(100)))
            await producer.commit()
        assert len(await committed(SERVERS, *ACCEPTED)) == 300

    by_writer(main, versions=[1])


def test_a_batch_that_was_refused_when_it_was_sent_again_takes_no_place_of_a_later_one() -> None:
    """Its first copy is still on its way, with the sequence number that the next batch would have."""

    async def main(world: World, producer: TransactionalProducer) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, WRITER, "Produce", 1, 3.0))
        world.cluster.partitions[ACCEPTED].refuses = [CORRUPT_MESSAGE]
        await producer.begin()
        with pytest.raises(AbortableError):
            await write(producer, b"refused")
        await producer.abort()
        await producer.begin()
        await asyncio.sleep(5)
        await write(producer, b"second")
        await producer.commit()
        assert await committed(SERVERS, *ACCEPTED) == [b"second"]

    by_writer(main)


@pytest.mark.parametrize("code", [KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS])
def test_a_batch_that_a_leader_cannot_store_for_the_moment_is_sent_again(code: int) -> None:
    async def main(world: World, producer: TransactionalProducer) -> None:
        world.cluster.partitions[ACCEPTED].refuses = [code, code]
        await producer.begin()
        await write(producer, b"value")
        await producer.commit()
        assert await committed(SERVERS, *ACCEPTED) == [b"value"]

    by_writer(main)


def test_a_late_offset_does_not_move_the_group_back() -> None:
    """TxnOffsetCommit is sent again when its connection is lost; its first copy arrives in the next transaction."""

    async def main(world: World, producer: TransactionalProducer) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, WRITER, "TxnOffsetCommit", 1, 3.0))
        for offset in (10, 20):
            await producer.begin()
            await write(producer, b"%d" % offset)
            await producer.send_offsets(GroupMember("ledger"), {(catalogue.LEDGER_TRANSFERS, 1): offset})
            if offset == 20:
                await asyncio.sleep(5)
            await producer.commit()
        await asyncio.sleep(1)
        assert await group_offsets(SERVERS, "ledger", catalogue.LEDGER_TRANSFERS) == {1: 20}

    by_writer(main)


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_late_request_opens_no_transaction_without_a_producer(ends: str) -> None:
    """The first copy of AddPartitionsToTxn arrives when its transaction has ended, and the epoch was raised."""

    async def main(world: World, producer: TransactionalProducer) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, WRITER, "AddPartitionsToTxn", 1, 3.0))
        for value in (b"first", b"second"):
            await producer.begin()
            await write(producer, value)
            await producer.commit()
            if ends == "before":
                await asyncio.sleep(20)
        await asyncio.sleep(20)
        assert not [note.text for note in world.cluster.notes if note.text.startswith(LATE)]
        assert await committed(SERVERS, *ACCEPTED) == [b"first", b"second"]

    by_writer(main)
