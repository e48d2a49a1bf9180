"""What tests share: one real cluster for the whole run, with the catalogue's topics."""

import asyncio
from collections.abc import Iterator

import pytest

from deploy.local.kafka import LocalKafka
from shared.kafka.admin import ensure_topics


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers. A test that kills or pauses one brings it back before it ends."""
    cluster = LocalKafka(tmp_path_factory.mktemp("kafka"))
    cluster.start()
    try:
        cluster.wait_ready(120)
        asyncio.run(ensure_topics(cluster.bootstrap_servers, deadline_s=60))
        yield cluster
    finally:
        cluster.kill()
