"""The clients' metrics of requests to real brokers: retries, sequences, fencing and outcomes."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from deploy.drills.figures import Figures
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, EosError, FencedError
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.client.cluster import check
from shared.kafka.runtime.outgoing import RECORD_BYTES_MAX
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract.helpers import committed

pytestmark = pytest.mark.timeout(180)

TOPIC = catalogue.PAYMENTS_ACCEPTED
REQUEST_TIMED_OUT = 7
CACHED_BATCHES = 5
"""The number of batches that a broker remembers of each producer."""


@pytest.fixture(scope="module")
def kafka(scratch: LocalKafka) -> LocalKafka:
    return scratch


@asynccontextmanager
async def a_producer(kafka: LocalKafka, transactional_id: str | None = None) -> AsyncIterator[TransactionalProducer]:
    """Initialise a producer and discard it at the end."""
    name = transactional_id or f"metrics-{uuid.uuid4()}"
    producer = TransactionalProducer(kafka.bootstrap_servers, name, 10_000, CrashPoints("", lambda _: None))
    try:
        await producer.init(30)
        yield producer
    finally:
        await producer.discard()


def records(count: int, value: bytes = b"value") -> list[Output]:
    return [Output(TOPIC, 1, b"key", value, ()) for _ in range(count)]


async def write(producer: TransactionalProducer, count: int, value: bytes = b"value") -> None:
    producer.append(records(count, value), 0)
    await producer.flush()


def gauge(name: str, producer: TransactionalProducer) -> float | None:
    return REGISTRY.get_sample_value(name, {"transactional_id": producer.transactional_id})


async def test_a_transaction_is_measured_from_begin_to_commit(kafka: LocalKafka) -> None:
    figures = Figures()
    async with a_producer(kafka) as producer:
        assert gauge("kafka_producer_epoch", producer) == 0
        assert gauge("kafka_producer_open_transaction_age_seconds", producer) == 0
        await producer.begin()
        await write(producer, 30)
        assert 0 < (gauge("kafka_producer_open_transaction_age_seconds", producer) or 0) < 10
        await producer.send_offsets(GroupMember("metrics"), {(TOPIC, 0): 1})
        await producer.commit()
        assert gauge("kafka_producer_open_transaction_age_seconds", producer) == 0
    assert gauge("kafka_producer_epoch", producer) is None
    assert figures.grown("kafka_producer_record_send_total", topic=TOPIC) == 30
    assert figures.grown("kafka_producer_record_queue_time_seconds_count") == 1
    assert figures.grown("kafka_producer_transactions_total", outcome="committed", cause="none") == 1
    assert figures.grown("kafka_producer_transaction_records_sum") == 30
    assert (REGISTRY.get_sample_value("kafka_producer_record_send_rate") or 0) > 0
    for step in ("init", "begin", "send_offsets", "commit"):
        assert figures.grown(f"kafka_producer_txn_{step}_seconds_count") == 1
    for api in ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"):
        assert figures.grown("kafka_producer_request_latency_seconds_count", api=api) >= 1


async def test_a_batch_whose_response_is_lost_is_retried_and_written_once(kafka: LocalKafka) -> None:
    figures, value = Figures(), uuid.uuid4().bytes
    async with a_producer(kafka) as producer:
        client: Any = producer.cluster._client
        send = client.send
        lost: list[Any] = []

        async def lose_one(node_id: int, request: Any, **more: Any) -> Any:
            answer = await send(node_id, request, **more)
            if request.api == "Produce" and not lost:
                lost.append(answer)
                check(REQUEST_TIMED_OUT, "the response is lost")
            return answer

        client.send = lose_one
        await producer.begin()
        await write(producer, 7, value)
        await producer.commit()
    assert lost
    assert figures.grown("kafka_producer_record_retry_total") == 7
    assert (REGISTRY.get_sample_value("kafka_producer_record_retry_rate") or 0) > 0
    assert figures.grown("kafka_producer_record_send_total", topic=TOPIC) == 7
    assert (await committed(kafka.bootstrap_servers, TOPIC, 1)).count(value) == 7


@pytest.mark.parametrize("shift", [-CACHED_BATCHES - 1, 5])
async def test_a_sequence_that_does_not_follow_is_counted_and_its_transaction_done_again(
    kafka: LocalKafka, shift: int
) -> None:
    """A gap, and a delayed batch that is older than all batches that the broker remembers."""
    figures, value = Figures(), uuid.uuid4().bytes
    async with a_producer(kafka) as producer:
        await producer.begin()
        for _ in range(CACHED_BATCHES + 1):
            await write(producer, 1, value)
        for target in list(producer._sequences):
            producer._sequences[target] += shift
        with pytest.raises(AbortableError):
            await write(producer, 1, value)
        await producer.abort()
        await producer.begin()
        await write(producer, 1, value)
        await producer.commit()
    assert (await committed(kafka.bootstrap_servers, TOPIC, 1)).count(value) == 1
    assert figures.grown("kafka_producer_out_of_order_sequence_total") >= 1
    assert figures.grown("kafka_producer_record_error_total", error="OutOfOrderSequenceNumber") == 1
    assert (REGISTRY.get_sample_value("kafka_producer_record_error_rate") or 0) > 0


async def test_fencing_is_counted_by_the_refused_request(kafka: LocalKafka) -> None:
    figures = Figures()
    async with a_producer(kafka) as older:
        await older.begin()
        await write(older, 1)
        async with a_producer(kafka, older.transactional_id) as newer:
            assert REGISTRY.get_sample_value("kafka_producer_epoch", {"transactional_id": newer.transactional_id})
            with pytest.raises(FencedError):
                await older.commit()
    assert figures.grown("kafka_producer_fenced_total", api="EndTxn", error="ProducerFenced") == 1


async def test_an_abort_is_counted_by_its_cause(kafka: LocalKafka) -> None:
    figures = Figures()
    async with a_producer(kafka) as producer:
        await producer.begin()
        with pytest.raises(EosError) as refused:
            await write(producer, 1, bytes(RECORD_BYTES_MAX // 2 + 100_000))
        await producer.abort(refused.value.cause)
        await producer.begin()
        await write(producer, 1)
        await producer.abort()
    aborted = {"outcome": "aborted"}
    assert figures.grown("kafka_producer_transactions_total", cause="MessageSizeTooLargeError", **aborted) == 1
    assert figures.grown("kafka_producer_transactions_total", cause="stopped", **aborted) == 1
    assert figures.grown("kafka_producer_txn_abort_seconds_count") == 2
