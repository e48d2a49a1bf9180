"""Metrics of the client's requests, with responses like those of the brokers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from shared.kafka.client.measured import measure_client
from shared.kafka.protocol.codec import Values

OUT_OF_ORDER, DUPLICATE, INVALID_EPOCH, NOT_LEADER = 45, 46, 47, 6


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Client:
    """Answers each request with the given response, or raises it if it is an exception."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.in_flight: list[float] = []

    async def send(self, _node_id: int, _request: object, **_: object) -> Any:
        self.in_flight.append(value("kafka_producer_requests_in_flight"))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def request(api: str) -> object:
    return type(f"{api}Request", (), {})()


async def ask(api: str, answer: object) -> Client:
    client = Client(answer)
    measure_client(client)
    assert await client.send(0, request(api)) is answer
    return client


def produced(*codes: int, throttle_ms: int = 0) -> SimpleNamespace:
    partitions = [(number, code, 0, -1, 0) for number, code in enumerate(codes)]
    return SimpleNamespace(topics=[("t", partitions)], throttle_time_ms=throttle_ms)


def per_partition(code: int) -> Values:
    return {"ThrottleTimeMs": 0, "Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 0, "ErrorCode": code}]}]}


def single(code: int) -> Values:
    return {"ThrottleTimeMs": 0, "ErrorCode": code}


def of_client(code: int) -> SimpleNamespace:
    """The client's own response."""
    return SimpleNamespace(error_code=code, throttle_time_ms=0)


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("InitProducerId", single),
        ("InitProducerId", of_client),
        ("AddPartitionsToTxn", per_partition),
        ("Produce", produced),
        ("Produce", per_partition),
        ("AddOffsetsToTxn", single),
        ("TxnOffsetCommit", per_partition),
        ("EndTxn", single),
    ],
)
async def test_fencing_is_counted_by_request(api: str, answer: Callable[[int], object]) -> None:
    labels = {"api": api, "error": "InvalidProducerEpoch"}
    before = value("kafka_producer_fenced_total", **labels)
    await ask(api, answer(0))
    await ask(api, answer(NOT_LEADER))
    assert value("kafka_producer_fenced_total", **labels) == before
    await ask(api, answer(INVALID_EPOCH))
    assert value("kafka_producer_fenced_total", **labels) == before + 1


async def test_sequences_and_quotas_are_counted() -> None:
    names = (
        "kafka_producer_duplicate_sequence_total",
        "kafka_producer_out_of_order_sequence_total",
        "kafka_producer_produce_throttle_time_seconds_total",
    )
    before = [value(name) for name in names]
    await ask("Produce", produced(0, DUPLICATE, OUT_OF_ORDER, DUPLICATE, throttle_ms=250))
    after = [value(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1, 0.25]


async def test_each_request_is_timed_and_counted_while_it_waits() -> None:
    name, waiting = "kafka_producer_request_latency_seconds_count", value("kafka_producer_requests_in_flight")
    before = value(name, api="Metadata")
    client = await ask("Metadata", SimpleNamespace(topics=[("t", [(5, INVALID_EPOCH)])]))
    assert client.in_flight == [waiting + 1]
    assert value("kafka_producer_requests_in_flight") == waiting
    assert value(name, api="Metadata") == before + 1


async def test_a_failed_request_is_no_longer_in_flight_and_raises() -> None:
    client, waiting = Client(ConnectionError("gone")), value("kafka_producer_requests_in_flight")
    measure_client(client)
    with pytest.raises(ConnectionError, match="gone"):
        await client.send(0, request("EndTxn"))
    assert value("kafka_producer_requests_in_flight") == waiting
