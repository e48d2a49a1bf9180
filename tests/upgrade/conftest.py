"""A broker and an installation for each module, without services at first."""

from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.upgrade.installation import Installation


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    directory = tmp_path_factory.mktemp("upgrade")
    with cluster(directory / "kafka") as kafka:
        made = Installation(kafka.bootstrap_servers, directory)
        try:
            yield made
        finally:
            made.kill()
