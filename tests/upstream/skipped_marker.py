"""Commit a transaction without a marker on a partition that has no leader at that moment.

    .venv/bin/python -m tests.upstream.skipped_marker

Exit codes: 0 the marker was skipped, and the next transaction aborted the records; 1 otherwise.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.kafka.admin import scratch
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.admin.transactions import describe
from shared.kafka.client.batches import Marker
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import eventually, settled_at, wait_until
from tests.upstream.evidence import endings

TOPIC = "skipped"
RECORDS = 10


def chosen(kafka: LocalKafka, lost: int) -> tuple[str, int]:
    """A transactional.id whose coordinator is not `lost`, and its coordinator."""
    leads = {part.partition: part.leader for part in kafka.view(0).partitions if part.topic == STATE_TOPIC}
    names = (f"skipped-{number}" for number in range(1000))
    return next((name, at) for name in names if (at := leads[partition_of(name, len(leads))]) != lost)


async def report(kafka: LocalKafka, one: TransactionalProducer) -> dict[Target, Marker | None]:
    """Print how the producer's transaction ended on each partition; returns the markers."""
    found = await endings(kafka.bootstrap_servers, TOPIC, *one.epoch)
    for (topic, partition), ending in sorted(found.items()):
        print(f"    {topic}-{partition}  {ending}")
    return {target: ending.marker for target, ending in found.items()}


async def main(directory: Path) -> int:
    """Run it on a new cluster."""
    kafka, lost = LocalKafka(directory), 2
    kafka.start()
    try:
        kafka.wait_ready(120)
        async with Cluster(kafka.bootstrap_servers) as cluster:
            await scratch.create_topic(cluster, TOPIC, 2, on=[[0], [lost]], configs={"min.insync.replicas": "1"})
        first = TransactionalProducer(kafka.bootstrap_servers, "first", 60_000, CrashPoints("", lambda _: None))
        await first.init(60)  # the brokers make __transaction_state
        await first.discard()
        await asyncio.to_thread(kafka.wait_in_sync, 60)
        name, coordinator = chosen(kafka, lost)
        one = TransactionalProducer(kafka.bootstrap_servers, name, 60_000, CrashPoints("", lambda _: None))
        await one.init(60)
        await one.begin()
        outputs = [Output(TOPIC, at, b"key", str(n).encode(), ()) for at in (0, 1) for n in range(RECORDS)]
        one.append(outputs, time.time_ns() // 1_000_000)
        await one.flush()
        print(f"{name}: coordinator broker {coordinator}; {RECORDS} records on {TOPIC}-0 and {TOPIC}-1, acknowledged")
        kafka.processes[lost].kill()

        def leaderless() -> bool:
            parts = kafka.view(coordinator).partitions
            return any((part.topic, part.partition, part.leader) == (TOPIC, 1, -1) for part in parts)

        await asyncio.to_thread(wait_until, leaderless, f"{TOPIC}-1 without a leader")
        print(f"broker {lost} killed; {TOPIC}-1 has no leader")
        await one.commit()
        print("EndTxn(COMMIT) was answered without an error")
        async with Brokers(kafka.bootstrap_servers) as brokers:

            async def complete() -> bool:
                await brokers.view([])
                return (await describe(brokers, coordinator, [name]))[0].state == "CompleteCommit"

            await eventually(complete, "CompleteCommit")
        print(f"its coordinator says CompleteCommit while {TOPIC}-1 has no leader")
        kafka.processes[lost].start()
        await asyncio.to_thread(kafka.wait_in_sync, 90)
        print(f"broker {lost} is back")
        skipped = await report(kafka, one)
        await one.discard()
        successor = TransactionalProducer(kafka.bootstrap_servers, name, 60_000, CrashPoints("", lambda _: None))
        await successor.init(60)
        await successor.begin()
        successor.append([Output(TOPIC, 1, b"key", b"next", ())], time.time_ns() // 1_000_000)
        await successor.flush()
        await successor.abort()
        print(f"a successor wrote one record to {TOPIC}-1 and aborted its own transaction")
        await eventually(lambda: settled_at(kafka.bootstrap_servers, (TOPIC, 1)), "its marker written")
        torn = Marker.ABORT in (await report(kafka, one)).values()
        await successor.discard()
        print("committed without a marker, then aborted by the next transaction" if torn else "not reproduced")
        return 0 if torn and skipped[TOPIC, 1] is None else 1
    finally:
        kafka.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(asyncio.run(main(Path(made))))
