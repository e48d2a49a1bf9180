"""aiokafka as its documentation shows it: consume, transform, produce in transactions; an error ends the process.

Only its transactional.id fences it. The client commits offsets without its member id and generation (KIP-447), so the
group's coordinator takes them from a zombie too: a hop that was paused commits what its successor has committed.
"""

import asyncio
import signal
from typing import Any

from deploy.drills.clients.job import Job, partition_of
from deploy.drills.clients.stock import stock_consumer, stock_producer


async def work(job: Job, transactional_id: str) -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer_of = stock_consumer(
        job.bootstrap_servers,
        job.source,
        group_id=job.group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        request_timeout_ms=job.request_timeout_ms,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
    )
    producer_of = stock_producer(
        job.bootstrap_servers,
        transactional_id=transactional_id,
        transaction_timeout_ms=job.transaction_timeout_ms,
        request_timeout_ms=job.request_timeout_ms,
    )
    async with consumer_of as consumer, producer_of as producer:
        while not stop.is_set():
            batch = await consumer.getmany(timeout_ms=100)
            if not batch:
                continue
            async with producer.transaction():
                offsets: dict[Any, int] = {}
                for target, records in batch.items():
                    for record in records:
                        await producer.send(job.sink, record.value, record.key, partition_of(record.value))
                    offsets[target] = records[-1].offset + 1
                await producer.send_offsets_to_transaction(offsets, job.group)


if __name__ == "__main__":
    started = Job.from_environment()
    asyncio.run(work(started, started.transactional_id))
