"""The output topic of a drill, as the brokers have it: every batch, with the end of its transaction."""

from contextlib import aclosing

from deploy.drills.clients.job import OUTPUT_PARTITIONS
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from tests.drills.transactions.judge import Written, written


async def read_output(bootstrap_servers: str, topic: str) -> list[Written]:
    """Read the data batches of all partitions; the records' values are numbers."""
    batches: dict[Target, list[Batch]] = {(topic, partition): [] for partition in range(OUTPUT_PARTITIONS)}
    async with Cluster(bootstrap_servers) as cluster:
        await cluster.partitions([topic])
        first = await cluster.offsets(list(batches), EARLIEST)
        ends = await cluster.offsets(list(batches), LATEST)
        async with aclosing(pages(cluster, first, ends=ends, committed=False)) as read:
            async for page in read:
                batches[page.target] += page.batches
    found: list[Written] = []
    for target, of_target in batches.items():
        data = [batch for batch in of_target if not batch.is_control]
        # A record without a value ends what brokers left open of a predecessor's transaction, and is aborted
        values = {batch.base_offset: [int(r.value) for r in batch.records(target) if r.value] for batch in data}
        found += written(target[1], of_target, values)
    return found
