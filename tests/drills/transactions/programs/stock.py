"""aiokafka as its documentation shows it: one transactional.id, and an error ends the process."""

import asyncio
import signal
from typing import Any

from deploy.drills.clients.stock import stock_consumer, stock_producer
from tests.drills.transactions.programs.job import Job, job, partition_of


async def main(work: Job) -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer_of = stock_consumer(
        work.bootstrap_servers,
        work.source,
        group_id=work.group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        request_timeout_ms=work.request_timeout_ms,
    )
    producer_of = stock_producer(
        work.bootstrap_servers,
        transactional_id=f"{work.group}-0",
        transaction_timeout_ms=work.transaction_timeout_ms,
        request_timeout_ms=work.request_timeout_ms,
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
                        await producer.send(work.sink, record.value, record.key, partition_of(record.value))
                    offsets[target] = records[-1].offset + 1
                await producer.send_offsets_to_transaction(offsets, work.group)


if __name__ == "__main__":
    asyncio.run(main(job()))
