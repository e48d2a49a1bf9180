"""Exactly once: write the records and the offsets in one transaction. A crash anywhere aborts both.

    python -m deploy.drills.clients.exactly_once BROKERS INPUT OUTPUT GROUP

The process that is started again has the same transactional.id: it aborts what was left, and reads from the offset
before it. Requests that are late can still do harm here; see docs/adr/0004-unknown-outcomes.md.
"""

import asyncio
import sys

from deploy.drills.clients.stock import stock_consumer, stock_producer


async def main(brokers: str, source: str, sink: str, group: str) -> None:
    """Copy records of the input to the output until the process is killed."""
    consumer_of = stock_consumer(
        brokers,
        source,
        group_id=group,
        group_instance_id=group,  # a process that is started again has its partitions back at once
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer_of = stock_producer(brokers, transactional_id=f"{group}-0")
    async with producer_of as producer, consumer_of as consumer:
        while True:
            batches = await consumer.getmany(timeout_ms=100)
            if not batches:
                continue
            async with producer.transaction():
                for records in batches.values():
                    for record in records:
                        await producer.send(sink, record.value)
                ends = {partition: records[-1].offset + 1 for partition, records in batches.items()}
                await producer.send_offsets_to_transaction(ends, group)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
