"""The transactional producer's guarantees, against real brokers."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, EosError, FencedError, UnknownOutcomeError
from shared.eos.records import Output
from shared.eos.states import InvalidTransitionError, State
from shared.events import catalogue
from shared.kafka.client.reader import end_offsets, group_offsets, stable_offsets
from shared.kafka.runtime.outgoing import RECORD_BYTES_MAX
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract.helpers import committed
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.simulated]

TIMEOUT_MS = 10_000
TOPIC = catalogue.PAYMENTS_DEDUPLICATED
SMALL = catalogue.PAYMENTS_ACCEPTED


@pytest.fixture
def kafka(cluster_under_test: LocalKafka) -> LocalKafka:
    return cluster_under_test


@pytest.fixture(params=[1, 2], ids=["v1", "v2"], autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of the transaction protocol that producers speak by default."""
    chosen: int = request.param
    defaults: Any = TransactionalProducer.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "version_max", chosen)
    return chosen


Make = Callable[..., TransactionalProducer]


@asynccontextmanager
async def producers(kafka: LocalKafka) -> AsyncIterator[Make]:
    """Make producers and discard them at the end."""
    made: list[TransactionalProducer] = []

    def make(
        transactional_id: str | None = None, timeout_ms: int = TIMEOUT_MS, **options: int
    ) -> TransactionalProducer:
        name = transactional_id or f"contract-{uuid.uuid4()}"
        points = CrashPoints("", lambda _: None)
        made.append(TransactionalProducer(kafka.bootstrap_servers, name, timeout_ms, points, **options))
        return made[-1]

    try:
        yield make
    finally:
        for producer in made:
            await producer.discard()


def record(value: bytes, topic: str = TOPIC, partition: int = 0) -> Output:
    return Output(topic, partition, b"key", value, (("origin", b"payments.raw:0:0"),))


async def test_committed_records_and_offsets_are_visible_and_aborted_ones_are_not(kafka: LocalKafka) -> None:
    group = f"group-{uuid.uuid4()}"
    kept, dropped, later = (uuid.uuid4().bytes for _ in range(3))
    async with producers(kafka) as make:
        producer = make()
        await producer.init(30)
        for value, keep, offset in ((kept, True, 7), (dropped, False, 8), (later, True, 9)):
            await producer.begin()
            producer.append([record(value), record(value, partition=3)], 1_700_000_000_000)
            await producer.flush()
            await producer.send_offsets(GroupMember(group), {(TOPIC, 0): offset})
            await (producer.commit() if keep else producer.abort())
        assert producer.state is State.READY
    for partition in (0, 3):
        values = await committed(kafka.bootstrap_servers, TOPIC, partition)
        assert (values.count(kept), values.count(dropped), values.count(later)) == (1, 0, 1)
    assert await group_offsets(kafka.bootstrap_servers, group, TOPIC) == {0: 9}


async def test_a_second_producer_of_the_same_id_fences_the_first_on_send_commit_and_abort(kafka: LocalKafka) -> None:
    for operation in ("flush", "commit", "abort"):
        value = uuid.uuid4().bytes
        async with producers(kafka) as make:
            older = make()
            await older.init(30)
            await older.begin()
            older.append([record(value)], 0)
            if operation != "flush":
                await older.flush()
            newer = make(older.transactional_id)
            await newer.init(30)
            assert newer.epoch[1] > older.epoch[1]
            with pytest.raises(FencedError):
                await {"flush": older.flush, "commit": older.commit, "abort": older.abort}[operation]()
            assert older.state is State.FATAL_ERROR
        assert value not in await committed(kafka.bootstrap_servers, TOPIC, 0)


async def test_initialising_aborts_the_previous_producers_open_transaction(kafka: LocalKafka) -> None:
    value = uuid.uuid4().bytes
    async with producers(kafka) as make:
        first = make()
        await first.init(30)
        await first.begin()
        first.append([record(value, partition=5)], 0)
        await first.flush()
        await first.discard()
        stable = await stable_offsets(kafka.bootstrap_servers, [TOPIC])
        ends = await end_offsets(kafka.bootstrap_servers, [TOPIC])
        assert stable[TOPIC, 5] < ends[TOPIC, 5], "the transaction is not open, so this proves nothing"

        await make(first.transactional_id).init(30)
        stable = await stable_offsets(kafka.bootstrap_servers, [TOPIC])
        assert stable[TOPIC, 5] == (await end_offsets(kafka.bootstrap_servers, [TOPIC]))[TOPIC, 5]
    assert value not in await committed(kafka.bootstrap_servers, TOPIC, 5)


async def test_producers_of_both_versions_succeed_each_other(kafka: LocalKafka, version: int) -> None:
    """As when a cluster's transaction.version is raised, or an upgrade of the services is taken back."""
    name = f"contract-{uuid.uuid4()}"
    left, kept = uuid.uuid4().bytes, uuid.uuid4().bytes
    async with producers(kafka) as make:
        before = (-1, -1)
        for one in (version, 3 - version, version):
            producer = make(name, version_max=one)
            await producer.init(30)
            assert producer.epoch > before
            for value in (kept, left):
                before = producer.epoch
                await producer.begin()
                producer.append([record(value, partition=4)], 0)
                await producer.flush()
                if value is kept:
                    await producer.commit()
            await producer.discard()
        await make(name).init(30)
    values = await committed(kafka.bootstrap_servers, TOPIC, 4)
    assert (values.count(kept), values.count(left)) == (3, 0)


async def test_a_refused_record_aborts_the_whole_transaction_and_the_producer_continues(kafka: LocalKafka) -> None:
    good, later = uuid.uuid4().bytes, uuid.uuid4().bytes
    too_large = bytes(RECORD_BYTES_MAX // 2 + 100_000)  # above this topic's limit, below the client's
    async with producers(kafka) as make:
        producer = make()
        await producer.init(30)
        await producer.begin()
        producer.append([record(good, SMALL, 1), record(too_large, SMALL, 2)], 0)
        with pytest.raises(AbortableError, match="MessageSizeTooLarge"):
            await producer.flush()
        with pytest.raises(InvalidTransitionError):
            await producer.commit()
        await producer.abort()

        await producer.begin()
        producer.append([record(later, SMALL, 1), record(later, SMALL, 2)], 0)
        await producer.flush()
        await producer.commit()
    assert good not in await committed(kafka.bootstrap_servers, SMALL, 1)
    assert later in await committed(kafka.bootstrap_servers, SMALL, 1)
    refused = await committed(kafka.bootstrap_servers, SMALL, 2)
    assert (too_large in refused, refused.count(later)) == (False, 1)


async def test_a_record_above_every_topics_limit_is_not_sent(kafka: LocalKafka) -> None:
    async with producers(kafka) as make:
        producer = make()
        await producer.init(30)
        await producer.begin()
        with pytest.raises(AbortableError, match="exceeds"):
            producer.append([record(b"small"), record(bytes(RECORD_BYTES_MAX + 1))], 0)


async def test_batches_beyond_one_request_keep_their_order(kafka: LocalKafka) -> None:
    values = [uuid.uuid4().bytes + b"%08d" % number + bytes(1000) for number in range(3000)]
    async with producers(kafka) as make:
        producer = make()
        await producer.init(30)
        await producer.begin()
        producer.append([record(value, catalogue.LEDGER_POSTINGS, 4) for value in values], 0)
        await producer.flush()
        await producer.commit()
    ours = set(values)
    found = await committed(kafka.bootstrap_servers, catalogue.LEDGER_POSTINGS, 4)
    assert [value for value in found if value in ours] == values


async def commits(make: Make, transactional_id: str) -> bool:
    """Return whether a patient producer commits a transaction."""
    producer = make(transactional_id)
    try:
        await producer.init(30)
        await producer.begin()
        producer.append([record(b"patient")], 0)
        await producer.flush()
        await producer.commit()
    except EosError:
        return False
    return True


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("add", "Produce was not"),
        ("produce", r"Produce was .* by broker 0 for [\w.-]+:0$"),
        ("commit", "EndTxn was not"),
    ],
)
async def test_without_any_response_the_outcome_is_unknown(kafka: LocalKafka, operation: str, reason: str) -> None:
    async with producers(kafka) as make:
        # Brokers that were stopped may still elect leaders: use this test's coordinator and partition first
        name = f"contract-{uuid.uuid4()}"
        await eventually(partial(commits, make, name), "a transaction is committed", 60)
        producer = make(name, timeout_ms=2000)
        await producer.init(30)
        await producer.begin()
        producer.append([record(uuid.uuid4().bytes)], 0)
        if operation != "add":
            await producer.flush()
            producer.append([record(uuid.uuid4().bytes)] if operation == "produce" else [], 0)
        kafka.pause()
        try:
            with pytest.raises(UnknownOutcomeError, match=reason):
                await (producer.commit() if operation == "commit" else producer.flush())
        finally:
            await producer.discard()
            kafka.resume()
        assert producer.state is State.CLOSED
        with pytest.raises(InvalidTransitionError):
            await producer.commit()
        kafka.wait_ready(120)


async def test_a_commit_whose_response_is_lost_is_decided_by_the_answer_to_its_repeat(kafka: LocalKafka) -> None:
    """The connection is lost after EndTxn is sent."""
    value, later = uuid.uuid4().bytes, uuid.uuid4().bytes
    lost: list[str] = []

    def lose_the_response(action: str) -> None:
        lost.append(action)
        for connection in list(producer.cluster._client._conns.values()):
            connection.close()

    producer = TransactionalProducer(
        kafka.bootstrap_servers,
        f"contract-{uuid.uuid4()}",
        TIMEOUT_MS,
        CrashPoints("end_txn_sent=kill:1", lose_the_response),
    )
    async with producers(kafka) as make:
        try:
            await producer.init(30)
            await producer.begin()
            producer.append([record(value, partition=2)], 0)
            await producer.flush()
            given = producer.epoch
            await producer.commit()
            assert (lost, producer.state) == (["kill"], State.READY)
            assert producer.epoch == (given[0], given[1] + 1), "a late copy would end the next transaction"
        finally:
            await producer.discard()
        successor = make(producer.transactional_id)
        await successor.init(30)
        settled_at = (await committed(kafka.bootstrap_servers, TOPIC, 2)).count(value)
        await successor.begin()
        successor.append([record(later, partition=2)], 0)
        await successor.flush()
        await successor.commit()
        values = await committed(kafka.bootstrap_servers, TOPIC, 2)
    assert settled_at == 1, "the request was not sent before its connection was closed"
    assert (values.count(value), values.count(later)) == (1, 1)
