"""Consume and produce with enable.auto.commit, as first tutorials show it: it loses records, or repeats them.

The consumer commits its position in the background, whatever the loop has done with the records of the last poll.

- Committed before they are produced: after a crash their outputs are missing.
- Produced before they are committed: after a crash they are produced again.
"""

import asyncio

from deploy.drills.clients.job import Job, partition_of
from deploy.drills.clients.stock import stock_consumer, stock_producer


async def work(job: Job) -> None:
    """Work until killed."""
    consumer_of = stock_consumer(
        job.bootstrap_servers,
        job.source,
        group_id=job.group,
        enable_auto_commit=True,
        auto_commit_interval_ms=500,
        auto_offset_reset="earliest",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
    )
    producer_of = stock_producer(
        job.bootstrap_servers, client_id=job.group, enable_idempotence=True, request_timeout_ms=job.request_timeout_ms
    )
    async with consumer_of as consumer, producer_of as producer:
        while True:
            polled = await consumer.getmany(timeout_ms=100)
            for record in (record for records in polled.values() for record in records):
                await producer.send_and_wait(job.sink, record.value, record.key, partition_of(record.value))


if __name__ == "__main__":
    asyncio.run(work(Job.from_environment()))
