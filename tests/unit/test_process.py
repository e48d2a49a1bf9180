"""What a service's process does before its work."""

import gc
import weakref
from collections.abc import Callable
from typing import TypeVar

import pytest

from shared.kafka.runtime.process import Process, run_process
from shared.settings import ServiceSettings

T = TypeVar("T")


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


def run(monkeypatch: pytest.MonkeyPatch, work: Callable[[], T]) -> T:
    """Run a service's process, and return what its work does."""
    for name, value in {"BOOTSTRAP_SERVERS": "127.0.0.1:1", "METRICS_PORT": "0"}.items():
        monkeypatch.setenv(f"ONCE_{name}", value)
    monkeypatch.setattr("shared.kafka.runtime.process.logs.configure", lambda *_, **__: None)
    found: list[T] = []

    async def worked(_settings: ServiceSettings, _process: Process) -> int:
        found.append(work())
        return 0

    assert run_process("ingest", ServiceSettings, worked, missing={}) == 0
    return found[0]


def test_full_collections_leave_out_what_was_there_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[list[int]] = [[] for _ in range(10_000)]
    frozen = gc.get_freeze_count()
    assert run(monkeypatch, gc.get_freeze_count) >= frozen + len(there)


def test_garbage_is_collected_however_much_was_there_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[list[int]] = [[] for _ in range(200_000)]

    def work() -> Cycle | None:
        old = [Cycle() for _ in range(len(there) // 10)]
        one = weakref.ref(old[0])
        gc.collect(1)
        del old
        for _ in range(100_000):
            Cycle()
        return one()

    assert run(monkeypatch, work) is None
