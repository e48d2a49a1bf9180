"""Transactional producers of this project, inside of a drill."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from deploy.drills.stage import Stage
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import EosError
from shared.eos.records import Output
from shared.eos.states import InvalidTransitionError
from shared.kafka.runtime.producer import TransactionalProducer

TIMESTAMP_MS = 1_700_000_000_000


@asynccontextmanager
async def producer(
    stage: Stage, transactional_id: str, *, timeout_ms: int = 60_000, bootstrap_servers: str = ""
) -> AsyncIterator[TransactionalProducer]:
    """Make a producer, not initialised; its connections are closed at the end, and its transaction stays as it is.

    Args:
        bootstrap_servers: past the proxy by default.
    """
    brokers = bootstrap_servers or stage.access
    made = TransactionalProducer(brokers, transactional_id, timeout_ms, NO_CRASHES)
    try:
        yield made
    finally:
        await made.discard()


async def put(producing: TransactionalProducer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Write records in the open transaction, and wait until they are acknowledged."""
    producing.append([Output(topic, partition, None, value, ()) for value in values], TIMESTAMP_MS)
    await producing.flush()


async def failure_of(work: Awaitable[None]) -> str:
    """Do something that fails, and return why: the broker's error by Kafka's name, or a state that does not allow it.

    Returns:
        An empty text if it does not fail.
    """
    try:
        await work
    except EosError as error:
        return error.cause
    except InvalidTransitionError as error:
        return type(error).__name__
    return ""
