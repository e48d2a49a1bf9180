"""A broker and an installation for each module, without services at first."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import INSTALLATION, TOPICS
from shared.events.installation import OWNERSHIP_KEY, PARTITION, Ownership, encode_ownership
from shared.kafka.admin.installation import ensure_installation
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.access import Access
from shared.kafka.client.idempotent import IdempotentWriter
from tests.partitions import PARTITIONS
from tests.upgrade.installation import Installation

NEVER: Final = 1 << 60
"""An offset that payments.raw does not reach."""


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, Path]]:
    """A broker with the topics of an installation from before ownership, and a directory."""
    directory = tmp_path_factory.mktemp("upgrade")
    kafka = LocalKafka(directory / "kafka", 1, heap_mb=256)
    kafka.start()
    try:
        kafka.wait_ready(120)
        asyncio.run(ensure_topics(kafka.access, PARTITIONS, 1, topics=TOPICS, deadline_s=60))
        yield kafka, directory
    finally:
        kafka.kill()


@pytest.fixture(scope="module")
def installation(former: tuple[LocalKafka, Path]) -> Iterator[Installation]:
    """An installation whose versions take turns: ownership is never reached, for the previous one does not know it."""
    kafka, directory = former
    asyncio.run(_make(kafka.access))
    yield from _running(kafka, directory)


@pytest.fixture(scope="module")
def unowned(former: tuple[LocalKafka, Path]) -> Iterator[Installation]:
    """An installation from before ownership was enforced."""
    yield from _running(*former)


def _running(kafka: LocalKafka, directory: Path) -> Iterator[Installation]:
    made = Installation(kafka.bootstrap_servers, directory)
    try:
        yield made
    finally:
        made.kill()


async def _make(brokers: Access) -> None:
    ownership = Ownership((NEVER,) * PARTITIONS, time.time_ns() // 1_000_000)
    async with IdempotentWriter(brokers) as writer:
        await writer.send(INSTALLATION, PARTITION, OWNERSHIP_KEY, encode_ownership(ownership))
    await ensure_installation(brokers)
