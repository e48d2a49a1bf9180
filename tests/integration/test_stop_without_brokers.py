"""Services that are stopped while no broker answers exit in time with 0."""

from pathlib import Path

import pytest

from deploy.local.supervisor.stack import Stack

pytestmark = pytest.mark.timeout(240)

STOPPED_S = 30.0
PROCESSORS = ("ingest", "transform", "ledger", "outbox")
NOTICED = ("Unable connect to node", "Connection refused")


def test_services_without_brokers_exit_with_0(tmp_path: Path) -> None:
    stack = Stack(tmp_path, brokers=1, heap_mb=256)
    stack.start()
    try:
        stack.wait_ready(120)
        for component in stack.components:
            component.release()
        services = {name: component.process for name, component in stack.services.items()}
        for process in services.values():
            process.pause()
        begun = {name: process.log_path.stat().st_size for name, process in services.items()}
        stack.kafka.kill()
        # Stop each service before it notices and exits with another code; this resumes it
        for process in services.values():
            process.request_stop()
        found = {name: process.wait(STOPPED_S) for name, process in services.items()}
        assert found == dict.fromkeys(services, 0)
        logs = {name: services[name].log_path.read_text()[begun[name] :] for name in PROCESSORS}
        assert all(any(words in log for words in NOTICED) for log in logs.values()), "a service noticed nothing"
    finally:
        stack.kill()
