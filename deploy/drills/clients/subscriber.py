"""A subscriber outside of any transaction: it does its work, and commits its offsets afterwards.

    python -m deploy.drills.clients.subscriber BROKERS TOPIC GROUP FILE

What is wrong with it: between the work and the commit is a gap. A subscriber that dies in the gap does the work again
when it is back, because its group still has the older offset. A transaction of the writer, and read_committed, do not
change that: they end at the topic. The other order, to commit first, loses the work instead.

What to do: give each record an identity, and do the work for an identity once. FILE is a list of identities, one a
line, in the order in which the work was done. `distinct` is what a receiver that remembers identities has.
"""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

from deploy.drills.clients.stock import stock_consumer

COMMIT_EVERY = 50
_WORK_S = 0.01


async def subscribe(brokers: str, topic: str, group: str, path: Path) -> None:
    """Do the work for each record until the process is killed."""
    options = {
        "group_id": group,
        "group_instance_id": "0",  # its successor takes over at once
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    async with stock_consumer(brokers, topic, **options) as consumer:
        done = 0
        with path.open("ab", buffering=0) as work:
            async for record in consumer:
                await asyncio.sleep(_WORK_S)  # the work takes its time
                work.write(record.key + b"\n")
                done += 1
                if done % COMMIT_EVERY == 0:
                    await consumer.commit()


def distinct(identities: Iterable[bytes]) -> list[bytes]:
    """Drop each identity that came before. Pure; a service keeps the known ones with its work, in one database."""
    return list(dict.fromkeys(identities))


if __name__ == "__main__":
    asyncio.run(subscribe(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
