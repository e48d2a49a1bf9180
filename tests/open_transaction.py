"""A process that opens a transaction, says so and waits to be killed; `tests.hanging.abandon` runs it."""

import asyncio
import sys

from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.kafka.runtime.producer import TransactionalProducer


async def main(brokers: str, transactional_id: str, timeout_ms: int, places: list[str]) -> None:
    """Write one record to each place, `topic:partition`, in one transaction."""
    producer = TransactionalProducer(brokers, transactional_id, timeout_ms, CrashPoints("", lambda _: None))
    await producer.init(30)
    await producer.begin()
    for place in places:
        topic, _, partition = place.rpartition(":")
        producer.append([Output(topic, int(partition), b"key", transactional_id.encode(), ())], 1_700_000_000_000)
    await producer.flush()
    print("transaction open", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
