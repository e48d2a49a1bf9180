"""At least once: write, then commit the offsets. A crash in between writes the records again.

    python -m deploy.drills.clients.at_least_once BROKERS INPUT OUTPUT GROUP

An idempotent producer does not help: the process that is started again has another producer id, and for the brokers its
records are new ones.
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
    async with consumer_of as consumer, stock_producer(brokers, enable_idempotence=True) as producer:
        while True:
            batches = await consumer.getmany(timeout_ms=100)
            if not batches:
                continue
            for records in batches.values():
                for record in records:
                    await producer.send(sink, record.value)
            await producer.flush()
            await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
