"""The order in which the verifier reads a cluster, without brokers."""

from collections.abc import Sequence

import pytest

from deploy import verification
from deploy.checkers.audit import Audit
from deploy.verification import verify_cluster
from shared.events.catalogue import EFFECTS_REQUESTS
from shared.kafka.client.cluster import Target
from shared.kafka.client.reader import OnRecords
from tests.planted import Clean


async def test_requests_that_expire_while_the_topics_are_read_are_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones of their partition: until then, it begins at offset 0."""
    world, beginnings = Clean(), dict[Target, int]()

    async def read(_: object, topics: Sequence[str], on_records: OnRecords, **__: object) -> dict[Target, int]:
        if EFFECTS_REQUESTS in topics:
            world.remove(world.receipt.request)
            at = world.receipt.request
            beginnings[at.topic, at.partition] = at.offset + 1
        for (topic, partition), records in world.logs.items():
            if topic in topics:
                on_records(topic, partition, records)
        return {}

    async def ends(*_: object) -> dict[Target, int]:
        return dict(world._next)

    async def begin(*_: object) -> dict[Target, int]:
        return dict(beginnings)

    async def committed(_: object, group: str, __: object) -> dict[int, int]:
        return dict(world.committed.get(group, {}))

    async def compacted(_: object) -> int:
        return 0

    async def account(_: object, audit: Audit) -> None:
        for partition, found in audit.raw_gaps().items():
            for gap in found:
                audit.account_for(partition, gap)

    monkeypatch.setattr(verification, "read_topics", read)
    monkeypatch.setattr(verification, "stable_offsets", ends)
    monkeypatch.setattr(verification, "beginning_offsets", begin)
    monkeypatch.setattr(verification, "group_offsets", committed)
    monkeypatch.setattr(verification, "common_count", lambda _: world.partitions)
    monkeypatch.setattr(verification, "_compacted_before_ms", compacted)
    monkeypatch.setattr(verification, "_account_for_gaps", account)
    verdict = await verify_cluster("127.0.0.1:1", wait=False)
    assert verdict.kinds == {}
