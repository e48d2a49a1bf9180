"""Every combination of parts in which brokers can tear a transaction, on each service: no record is lost or duplicated.

A transaction's parts are its offset, its changelog, and each output partition. In each row a service is stopped between
TxnOffsetCommit and EndTxn, some parts get a COMMIT marker, the service is killed, and the coordinator aborts the others
when the successor initialises. The successor must complete the torn transaction.
"""

import asyncio
from collections.abc import Iterator

import pytest

from shared.events import catalogue
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.idempotent import IdempotentWriter
from tests.harness import cluster
from tests.outbox import world_over
from tests.partitions import PARTITIONS
from tests.proof import assert_exactly_once, verdict
from tests.tearing import CHANGELOGS, SERVICES, Pipeline, Torn
from tests.tiers import mostly_full

pytestmark = pytest.mark.timeout(300)

ROUNDS = [(name, at) for name, torn in SERVICES.items() for at in range(0, len(torn.combinations()), PARTITIONS)]
QUICK = {("ledger", 30)}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    directory = tmp_path_factory.mktemp("torn")
    with cluster(directory / "kafka") as kafka, world_over(kafka.bootstrap_servers, directory / "world") as world:
        made = Pipeline(world)
        try:
            asyncio.run(made.fund())
            yield made
        finally:
            made.stop()


def described(torn: Torn, row: tuple[bool, ...]) -> str:
    names = ["offsets", *(f"{topic}+{further}" if further else topic for topic, further in torn.outputs)]
    return ", ".join(name for name, on in zip(names, row, strict=True) if on) or "nothing"


@pytest.mark.parametrize(("name", "at"), mostly_full(ROUNDS, QUICK))
async def test_a_torn_transaction_is_completed(pipeline: Pipeline, name: str, at: int) -> None:
    torn = SERVICES[name]
    rows = torn.combinations()[at : at + PARTITIONS]
    successor = await pipeline.tear(torn, rows)

    completed = {line["partition"]: line for line in successor.log() if line["event"] == "torn transaction completed"}
    result = verdict(pipeline.brokers)
    print(f"\n{'service':<10} {'committed by the brokers':<100} outcome")
    fates = torn.fates(rows)
    for partition, row in enumerate(fates):
        outcome = "torn, completed" if partition in completed else "whole"
        print(f"{name:<10} {described(torn, row):<100} {outcome}, {result['verdict']}")
    assert set(completed) == {partition for partition, row in enumerate(fates) if any(row) and not all(row)}
    assert successor.metric("once_torn_transactions_total") == len(completed)
    assert_exactly_once(result)


async def test_a_copy_of_a_committed_record_is_ignored_by_its_receiver(pipeline: Pipeline) -> None:
    """Keep this test last in the module: its copies stay, and verification reports them."""
    receivers = [torn for torn in SERVICES.values() if torn.topic != catalogue.PAYMENTS_RAW]
    outputs = {topic for torn in SERVICES.values() for topic, _ in torn.outputs if topic not in CHANGELOGS}
    await pipeline.pay()
    await wait_drained(pipeline.brokers, deadline_s=60)
    before = await pipeline.records(outputs)
    for restarted in (False, True):
        if restarted:
            for torn in receivers:
                pipeline.stop(torn.service)
                pipeline.start(torn.service)
        for torn in receivers:
            [*_, last] = [one for one in before[torn.topic] if one.partition == 0]
            async with IdempotentWriter(pipeline.brokers) as writer:
                await writer.write(last.topic, 0, last.key, last.value, last.headers)
                await writer.flush()
        await wait_drained(pipeline.brokers, deadline_s=60)
        copies = {torn.topic for torn in receivers}
        after = await pipeline.records(outputs)
        assert {topic: len(found) - len(before[topic]) for topic, found in after.items()} == {
            topic: (1 + restarted) * (topic in copies) for topic in after
        }
        for torn in receivers:
            assert pipeline.metric(torn.service, "once_source_repeats_total") == 1
