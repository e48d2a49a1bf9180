"""Batches that brokers refuse, of producers that are not scraped: the brokers' metrics must show them."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from deploy.drills.admin import create_topic, delete_topic
from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError
from shared.eos.records import Output
from shared.kafka.runtime.producer import TransactionalProducer
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site

TOPIC: Final = "drill.batches"
RECORD_BYTES_MAX: Final = 1_000
REFUSALS: Final = 6

Work = Callable[[TransactionalProducer], Awaitable[None]]


class BadBatches(Fault):
    """A producer of our own does what the brokers refuse, on a topic of the drill's own.

    Args:
        work: what it does, initialised; it must itself see the refusal.
        times: by how many producers, one after the other.
    """

    def __init__(self, work: Work, times: int = 1) -> None:
        self._work = work
        self._times = times

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        asyncio.run(create_topic(site.kafka, TOPIC, "0:1:2", f"max.message.bytes={RECORD_BYTES_MAX}"))
        asyncio.run(self._run(site.brokers))

    def heal(self, site: Site) -> None:
        """Delete the topic: refused batches leave no records."""
        asyncio.run(delete_topic(site.kafka, TOPIC))

    async def _run(self, brokers: str) -> None:
        for _ in range(self._times):
            # With version 2 of the protocol a leader adds a partition that the transaction does not have
            producer = TransactionalProducer(
                brokers, f"drill-{uuid.uuid4()}", 10_000, CrashPoints("", lambda _: None), version_max=1
            )
            try:
                await producer.init(30)
                await self._work(producer)
            finally:
                await producer.discard()


async def oversized(producer: TransactionalProducer) -> None:
    """A record that is larger than the topic takes."""
    await producer.begin()
    await _refused("MessageSizeTooLargeError", _write(producer, bytes(2 * RECORD_BYTES_MAX)))
    await producer.abort()


async def gap(producer: TransactionalProducer) -> None:
    """A batch whose sequence number leaves out five records."""
    await producer.begin()
    await _write(producer, b"first")
    for target in list(producer._sequences):
        producer._sequences[target] += 5
    await _refused("OutOfOrderSequenceNumber", _write(producer, b"sixth"))


async def unknown(producer: TransactionalProducer) -> None:
    """A batch of a transaction that the partition was never added to: its coordinator does not know of it (KIP-890)."""
    await producer.begin()
    producer._added.add((TOPIC, 0))  # taken for added, so nothing is
    await _refused("TransactionAbortableError", _write(producer, b"unknown"))


async def _write(producer: TransactionalProducer, value: bytes) -> None:
    producer.append([Output(TOPIC, 0, b"key", value, ())], time.time_ns() // 1_000_000)
    await producer.flush()


async def _refused(cause: str, write: Awaitable[None]) -> None:
    refused_with = ""
    try:
        await write
    except EosError as error:
        refused_with = error.cause
    assert refused_with == cause
