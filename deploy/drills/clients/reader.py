"""A reader of a topic as stock aiokafka makes it: its isolation level is read_uncommitted unless it is set.

Such a reader takes records of transactions that are still open or were aborted, and acts on what never happened.
"""

from typing import Any

from deploy.drills.clients.stock import stock_consumer


async def read_to(bootstrap_servers: str, topic: str, last: bytes, **options: Any) -> list[bytes]:
    """Read from the beginning to a value, with the client's `options`, and return all values."""
    found: list[bytes] = []
    async with stock_consumer(bootstrap_servers, topic, auto_offset_reset="earliest", **options) as consumer:
        async for record in consumer:
            found.append(record.value)
            if record.value == last:
                break
    return found
