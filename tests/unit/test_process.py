"""What a service's process does before its work."""

import gc

import pytest

from shared.kafka.runtime.process import Process, run_process
from shared.settings import ServiceSettings


def test_no_collection_traverses_what_was_there_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BOOTSTRAP_SERVERS": "127.0.0.1:1", "METRICS_PORT": "0"}.items():
        monkeypatch.setenv(f"ONCE_{name}", value)
    monkeypatch.setattr("shared.kafka.runtime.process.logs.configure", lambda *_, **__: None)
    traversed: list[int] = []

    async def work(_settings: ServiceSettings, _process: Process) -> int:
        traversed.extend(len(gc.get_objects(generation)) for generation in range(3))
        return 0

    try:
        assert run_process("ingest", ServiceSettings, work, missing={}) == 0
    finally:
        gc.unfreeze()
    assert sum(traversed) < 1_000 < len(gc.get_objects())
