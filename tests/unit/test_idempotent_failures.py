"""The idempotent writer's report of a failure: its kind and cause, to each caller as a separate error.

Real brokers are in tests/contract/test_idempotent_writer.py.
"""

import asyncio
from typing import Any

import pytest

from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from tests.broker_errors import NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED, broker_error

BROKERS = "127.0.0.1:1"


class Batches:
    """A producer whose every batch fails with one error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def create_batch(self) -> "Batches":
        return self

    def append(self, **_: Any) -> object:
        return self

    def size(self) -> int:
        return 100

    async def send_batch(self, *_: Any, **__: Any) -> "asyncio.Future[Any]":
        failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        failed.set_exception(self.error)
        return failed


def failing(monkeypatch: pytest.MonkeyPatch, *starts: Exception | Batches) -> None:
    """Let each start of a producer return the next of these, or raise it."""
    left = list(starts)

    async def start(*_: Any) -> Batches:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def discard(_: Any) -> None:
        """Nothing is open."""

    monkeypatch.setattr("shared.kafka.client.idempotent.start", start)
    monkeypatch.setattr("shared.kafka.client.idempotent.discard", discard)
    monkeypatch.setattr("shared.kafka.client.idempotent.new_batch", lambda producer: producer)


async def test_a_denial_is_raised_in_each_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, Batches(broker_error(TOPIC_AUTHORIZATION_FAILED, PAYMENTS_RAW)))
    async with IdempotentWriter(BROKERS) as writer:
        sends = [writer.send(PAYMENTS_RAW, 0, b"k", b"v") for _ in range(2)]
        one, other = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(one, DeniedError)
    assert isinstance(other, DeniedError)
    assert one is not other
    assert one.__cause__ is other.__cause__
    assert f"writing to {PAYMENTS_RAW} (TopicAuthorizationFailedError)" in str(one)


async def test_a_denial_is_raised_in_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, Batches(broker_error(TOPIC_AUTHORIZATION_FAILED, PAYMENTS_RAW)))
    async with IdempotentWriter(BROKERS) as writer:
        await writer.write(PAYMENTS_RAW, 0, b"k", b"v")
        with pytest.raises(DeniedError) as refused:
            await writer.flush()
        assert str(refused.value.__cause__) == str(refused.value)
        await writer.flush()  # it is raised once


async def test_credentials_that_became_unusable_are_a_denial_to_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = DeniedError("ONCE_TLS_IDENTITY_FILE is gone.pem, which cannot be read")
    failing(monkeypatch, Batches(broker_error(TOPIC_AUTHORIZATION_FAILED, PAYMENTS_RAW)), gone)
    async with IdempotentWriter(BROKERS) as writer:
        with pytest.raises(DeniedError):
            await writer.send(PAYMENTS_RAW, 0, b"k", b"v")
        with pytest.raises(DeniedError, match=r"gone\.pem") as refused:  # a new producer is needed
            await writer.send(PAYMENTS_RAW, 0, b"k", b"v")
        assert refused.value.__cause__ is gone


async def test_a_temporary_error_is_not_a_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, Batches(broker_error(NOT_ENOUGH_REPLICAS, "gone")))
    async with IdempotentWriter(BROKERS) as writer:
        with pytest.raises(KafkaUnavailableError) as refused:
            await writer.send(PAYMENTS_RAW, 0, b"k", b"v")
        assert type(refused.value) is KafkaUnavailableError
