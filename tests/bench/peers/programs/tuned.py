"""aiokafka, tuned: one batch for each output partition, no future for a record, large fetches."""

import asyncio
import signal
import time
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from shared.events.partitions import murmur2
from tests.bench.peers.programs.work import Job, handle, job, report_first

BATCH_BYTES = 512 * 1024
FETCH_BYTES = 4 * 1024 * 1024
RECORDS_MAX = 8000


class Outputs:
    """The open transaction's batches, one for each partition.

    Args:
        partitions: of both output topics.
    """

    def __init__(self, producer: Any, work: Job, partitions: int) -> None:
        self._producer = producer
        self._work = work
        self._partitions = partitions
        self._partition_of: dict[bytes, int] = {}
        self._open: dict[tuple[str, int], Any] = {}

    async def append(self, key: bytes, value: bytes) -> None:
        """Append one input record's output; send a batch that is full."""
        out = handle(value)
        topic, key, value = (self._work.dead_letters, key, value) if out is None else (self._work.sink, *out)
        partition = self._partition_of.get(key)
        if partition is None:
            partition = self._partition_of[key] = (murmur2(key) & 0x7FFFFFFF) % self._partitions
        at = topic, partition
        batch = self._open.get(at)
        if batch is None:
            batch = self._open[at] = self._producer.create_batch()
        if batch.append(key=key, value=value, timestamp=None) is None:
            await self._producer.send_batch(batch, topic, partition=partition)
            batch = self._open[at] = self._producer.create_batch()
            batch.append(key=key, value=value, timestamp=None)

    async def flush(self) -> None:
        """Send all batches."""
        for (topic, partition), batch in self._open.items():
            await self._producer.send_batch(batch, topic, partition=partition)
        self._open.clear()


async def transaction(
    consumer: Any, producer: Any, outputs: Outputs, work: Job, records: Any, stop: asyncio.Event
) -> None:
    """Process these records and those that follow within the time that a transaction stays open."""
    deadline = time.monotonic() + work.open_s
    offsets: dict[TopicPartition, int] = {}
    async with producer.transaction():
        while True:
            for target, polled in records.items():
                for record in polled:
                    await outputs.append(record.key, record.value)
                offsets[target] = polled[-1].offset + 1
            await outputs.flush()
            left_s = deadline - time.monotonic()
            if left_s <= 0 or stop.is_set():
                break
            records = await consumer.getmany(timeout_ms=min(20, int(left_s * 1000)), max_records=RECORDS_MAX)
        await producer.send_offsets_to_transaction(offsets, work.group)


async def main(work: Job) -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        work.source,
        bootstrap_servers=work.bootstrap_servers,
        group_id=work.group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=work.bootstrap_servers,
        transactional_id=f"{work.group}-0",
        linger_ms=0,
        max_batch_size=BATCH_BYTES,
        max_request_size=2 * BATCH_BYTES,
    )
    await producer.start()
    await consumer.start()
    outputs = Outputs(producer, work, len(await producer.partitions_for(work.sink)))
    reported = False
    while not stop.is_set():
        records = await consumer.getmany(timeout_ms=100, max_records=RECORDS_MAX)
        if records:
            if not reported:
                reported = True
                report_first()
            await transaction(consumer, producer, outputs, work, records, stop)
    await consumer.stop()
    await producer.stop()


if __name__ == "__main__":
    uvloop.run(main(job()))
