"""Batches that brokers refuse, of producers that are not scraped: the brokers' metrics must show them."""

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from deploy.drills.admin import create_topic, delete_topic
from deploy.drills.alerts.site import Site
from deploy.drills.faults.fault import NoEvidenceError
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import EosError
from shared.eos.records import Output
from shared.kafka.runtime.producer import TransactionalProducer

TOPIC: Final = "drill.batches"
RECORD_BYTES_MAX: Final = 1_000
REFUSALS: Final = 6

Work = Callable[[TransactionalProducer], Awaitable[str]]


class BadBatches:
    """A producer of our own does what the brokers refuse, on a topic of the drill's own.

    Args:
        work: what it does, initialised; it must itself see the refusal, and returns the error.
        times: by how many producers, one after the other.
    """

    def __init__(self, work: Work, times: int = 1) -> None:
        self._work = work
        self._times = times

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await create_topic(site.bootstrap_servers, TOPIC, on=(0, 1, 2), max_message_bytes=str(RECORD_BYTES_MAX))
        refusals = [await self._refused_by(site.bootstrap_servers) for _ in range(self._times)]
        return f"refused with {', '.join(refusals)}"

    async def heal(self, site: Site) -> None:
        """Delete the topic: refused batches leave no records."""
        await delete_topic(site.bootstrap_servers, TOPIC)

    async def _refused_by(self, brokers: str) -> str:
        # With version 2 of the protocol a leader adds a partition that the transaction does not have
        producer = TransactionalProducer(brokers, f"drill-{uuid.uuid4()}", 10_000, NO_CRASHES, version_max=1)
        try:
            await producer.init(30)
            return await self._work(producer)
        finally:
            await producer.discard()


async def oversized(producer: TransactionalProducer) -> str:
    """Write a record that is larger than the topic takes."""
    await producer.begin()
    refused = await _refused("MessageSizeTooLargeError", _write(producer, bytes(2 * RECORD_BYTES_MAX)))
    await producer.abort()
    return refused


async def gap(producer: TransactionalProducer) -> str:
    """Write a batch whose sequence number leaves out five records."""
    await producer.begin()
    await _write(producer, b"first")
    for target in list(producer._sequences):  # noqa: SLF001 # the fault
        producer._sequences[target] += 5  # noqa: SLF001 # the same
    return await _refused("OutOfOrderSequenceNumber", _write(producer, b"sixth"))


async def unknown(producer: TransactionalProducer) -> str:
    """Write to a partition that was never added to the transaction: its coordinator does not know of it (KIP-890)."""
    await producer.begin()
    producer._added.add((TOPIC, 0))  # noqa: SLF001 # taken for added, so nothing is
    return await _refused("TransactionAbortableError", _write(producer, b"unknown"))


async def _write(producer: TransactionalProducer, value: bytes) -> None:
    producer.append([Output(TOPIC, 0, b"key", value, ())], time.time_ns() // 1_000_000)
    await producer.flush()


async def _refused(cause: str, write: Awaitable[None]) -> str:
    refused_with = "nothing"
    try:
        await write
    except EosError as error:
        refused_with = error.cause
    if refused_with != cause:
        raise NoEvidenceError(f"refused with {refused_with}, not {cause}")
    return refused_with
