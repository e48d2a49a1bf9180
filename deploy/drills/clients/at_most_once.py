"""At most once: commit the offsets, then write. A crash in between loses the records.

    python -m deploy.drills.clients.at_most_once BROKERS INPUT OUTPUT GROUP

The group's offset says that they were processed, so no other process reads them again.
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
    )
    async with consumer_of as consumer, stock_producer(brokers) as producer:
        while True:
            batches = await consumer.getmany(timeout_ms=100)
            if not batches:
                continue
            await consumer.commit()
            for records in batches.values():
                for record in records:
                    await producer.send(sink, record.value)
            await producer.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
