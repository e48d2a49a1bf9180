"""What a service's process does before its work."""

import gc

import pytest

from shared.kafka.runtime.process import Process, run_process
from shared.settings import ServiceSettings


def test_full_collections_leave_out_what_was_there_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BOOTSTRAP_SERVERS": "127.0.0.1:1", "METRICS_PORT": "0"}.items():
        monkeypatch.setenv(f"ONCE_{name}", value)
    monkeypatch.setattr("shared.kafka.runtime.process.logs.configure", lambda *_, **__: None)
    there: list[list[int]] = [[] for _ in range(10_000)]
    frozen = gc.get_freeze_count()
    counts: list[int] = []

    async def work(_settings: ServiceSettings, _process: Process) -> int:
        counts.append(gc.get_freeze_count())
        return 0

    assert run_process("ingest", ServiceSettings, work, missing={}) == 0
    assert counts[0] >= frozen + len(there)
