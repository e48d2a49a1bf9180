"""A monitored stack for drills and tests: ready, and every one of its targets scraped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.drills.prometheus import Prometheus, PrometheusError
from deploy.local.supervisor.stack import Stack
from tests.harness import wait_until

READY_S = 120.0
SCRAPED_S = 30.0


@contextmanager
def monitored(directory: Path, brokers: int = 3) -> Iterator[Stack]:
    """A stack that is killed at the end.

    Args:
        directory: for its data and logs.
        brokers: three for the drills of replication.
    """
    stack = Stack(directory, brokers=brokers, monitoring=True)
    try:
        stack.start()
        stack.wait_ready(READY_S)
        wait_until(lambda: _all_up(stack), "every target scraped", SCRAPED_S)
        yield stack
    finally:
        stack.kill()


def _all_up(stack: Stack) -> bool:
    assert stack.monitoring is not None
    try:
        targets = Prometheus(stack.monitoring.url).targets()
    except PrometheusError:
        return False
    return bool(targets) and all(target.up for target in targets)
