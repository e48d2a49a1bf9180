"""A stack that is stopped while another thread starts it leaves nothing running."""

import sys
from pathlib import Path

import pytest

from deploy.local.supervisor.stack import Stack, StackNotReadyError


def test_a_stack_that_is_killed_while_it_starts_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path, services=(), brokers=1)
    [broker] = stack.kafka.processes
    broker.argv = [sys.executable, "-c", "import time; time.sleep(60)"]

    def start_late() -> None:
        """Start the broker after the stack was killed, as when that happened while its storage was formatted."""
        stack.kill()
        broker.start()
        assert broker.running

    monkeypatch.setattr(stack.kafka, "start", start_late)
    monkeypatch.setattr(stack.redis, "start", lambda: None)
    with pytest.raises(StackNotReadyError, match="stopped while it started"):
        stack.start()
    assert [component.name for component in stack.components if component.process.running] == []
