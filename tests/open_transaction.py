"""A process that opens a transaction, says so and waits to be killed; `abandon` runs it."""

import asyncio
import sys
import uuid
from pathlib import Path

from deploy.local.process import ManagedProcess
from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import ROOT, wait_until

OPEN = "transaction open"
"""Output of the process."""


async def main(brokers: str, transactional_id: str, timeout_ms: int, places: list[str]) -> None:
    """Write one record to each place, `topic:partition`, in one transaction."""
    producer = TransactionalProducer(brokers, transactional_id, timeout_ms, CrashPoints("", lambda _: None))
    await producer.init(30)
    await producer.begin()
    for place in places:
        topic, _, partition = place.rpartition(":")
        producer.append([Output(topic, int(partition), b"key", transactional_id.encode(), ())], 1_700_000_000_000)
    await producer.flush()
    print(OPEN, flush=True)
    await asyncio.Event().wait()


def abandon(
    brokers: str, directory: Path, transactional_id: str, targets: list[Target], *, timeout_ms: int = 60_000
) -> None:
    """Leave a transaction open that has a record on each partition, by a process that is killed.

    Args:
        brokers: where the cluster listens.
        directory: for the process's log.
        transactional_id: the producer's, and the records' value.
        targets: the partitions.
        timeout_ms: after it the coordinator aborts the transaction.
    """
    words = [brokers, transactional_id, str(timeout_ms), *(f"{topic}:{partition}" for topic, partition in targets)]
    argv = [sys.executable, "-m", "tests.open_transaction", *words]
    process = ManagedProcess(transactional_id, argv, {}, directory / f"{uuid.uuid4()}.log", cwd=ROOT)
    process.start()
    try:
        wait_until(lambda: OPEN in process.log_tail() or not process.running, f"{transactional_id} open")
        assert process.running, process.log_tail()
    finally:
        process.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
