"""The brokers are gone when services are asked to stop: they end all the same, in time, with 0."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.local.process import ManagedProcess, ProcessNotRunningError
from deploy.local.supervisor.stack import Stack
from shared.eos.errors import EXIT_FENCED
from tests.harness import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

STOPPED_S = 30.0
NOTICED = ("Unable connect to node", "Connection refused")
FAILED = {"fatal", "fenced", "cannot start"}


class Told:
    """What a process has written into its log since the brokers are gone."""

    def __init__(self, process: ManagedProcess) -> None:
        self._process = process
        self._begun = process.log_path.stat().st_size

    @property
    def _text(self) -> str:
        with self._process.log_path.open("rb") as file:
            file.seek(self._begun)
            return file.read().decode()

    @property
    def noticed(self) -> bool:
        """Whether it has found out: it tries to connect again, or has ended to be started again."""
        return not self._process.running or any(words in self._text for words in NOTICED)

    def reasons(self, *events: str) -> set[str]:
        """Why something failed: of these events, or of all of them when none is named."""
        lines = [json.loads(line) for line in self._text.splitlines() if line.startswith("{")]
        return {line["reason"] for line in lines if "reason" in line and (not events or line["event"] in events)}


def test_services_whose_brokers_are_gone_end_with_0(tmp_path: Path) -> None:
    stack = Stack(tmp_path, brokers=1, heap_mb=256)
    stack.start()
    try:
        stack.wait_ready(120)
        for component in stack.components:
            component.release()
        services = {name: component.process for name, component in stack.services.items()}
        told = {name: Told(process) for name, process in services.items()}
        stack.kafka.kill()
        processors = ("ingest", "transform", "ledger", "outbox")
        wait_until(lambda: all(told[name].noticed for name in processors), "they notice")
        for process in services.values():  # so that nobody gives up between our look and our signal
            with suppress(ProcessNotRunningError):
                process.pause()
        ended = {name for name, process in services.items() if not process.running}
        before = {name: log.reasons() for name, log in told.items()}
        for process in services.values():
            process.request_stop()
        found = {name: process.wait(STOPPED_S) for name, process in services.items()}
        # What ends a partition for good is told at once; that the process ends of it, when its clients are closed
        gave_up = {name for name in services if name in ended or told[name].reasons(*FAILED) & before[name]}
        assert found == {name: EXIT_FENCED if name in gave_up else 0 for name in services}
        assert len(gave_up) < len(services)
    finally:
        stack.kill()
