"""What tests share: one real cluster for the whole run, with the catalogue's topics."""

from collections.abc import Iterator

import pytest

from deploy.local.kafka import LocalKafka
from tests.harness import cluster
from tests.postgres import postgres, view_url

__all__ = ["kafka", "postgres", "view_url"]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers. A test that kills or pauses one brings it back before it ends."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        yield running
