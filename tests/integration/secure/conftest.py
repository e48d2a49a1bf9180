"""One secure stack for all tests of this package."""

from collections.abc import Iterator

import pytest

from deploy.local.supervisor import state
from deploy.local.supervisor.daemon import describe
from deploy.local.supervisor.stack import Stack
from deploy.security.certificates import Authority
from tests.integration.secure.commands import READY_S


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """All services, each with its own identity; the commands find the stack by its stack.json."""
    replaced = any(item.path.stem == "test_work" for item in request.session.items)
    made = Stack(
        tmp_path_factory.mktemp("secure"),
        brokers=3 if replaced else 1,  # test_work replaces credentials broker by broker
        heap_mb=256,
        secure=True,
        on_state=lambda current: state.write(current.directory, describe(current)),
    )
    try:
        made.start()
        made.wait_ready(READY_S)
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="package")
def authority(stack: Stack) -> Authority:
    """The authority whose certificates the stack trusts."""
    assert stack.kafka.authority is not None
    return stack.kafka.authority
