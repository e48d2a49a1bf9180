"""The brokers are gone when services are asked to stop: they end all the same, in time, with 0."""

from pathlib import Path

import pytest

from deploy.local.process import ManagedProcess
from deploy.local.supervisor import Stack
from shared.eos.errors import EXIT_FENCED
from tests.harness import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

STOPPED_S = 30.0
NOTICED = ("Unable connect to node", "Connection refused")


def noticed(process: ManagedProcess) -> bool:
    """Whether it has found out: it tries to connect again, or has ended to be started again."""
    return not process.running or any(words in process.log_path.read_text() for words in NOTICED)


def test_services_whose_brokers_are_gone_end_with_0(tmp_path: Path) -> None:
    stack = Stack(tmp_path, heap_mb=256)
    stack.start()
    try:
        stack.wait_ready(120)
        for component in stack.components:
            component.release()
        services = {name: component.process for name, component in stack.services.items()}
        processors = [services[name] for name in ("ingest", "transform", "ledger", "outbox")]
        stack.kafka.kill()
        wait_until(lambda: all(map(noticed, processors)), "they notice")
        gave_up = {name for name, process in services.items() if not process.running}
        for process in services.values():
            process.request_stop()
        found = {name: process.wait(STOPPED_S) for name, process in services.items()}
        assert found == {name: EXIT_FENCED if name in gave_up else 0 for name in services}
        assert len(gave_up) < len(services)
    finally:
        stack.kill()
