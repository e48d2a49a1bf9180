"""A drill's stack that is interrupted while it starts."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from deploy.drills import run
from deploy.drills.alerts import monitored
from deploy.local.supervisor.stack import StackNotReadyError

WITHIN_S = 30.0


class Slow:
    """A stack whose start goes on for a while after it was killed, and writes to its directory."""

    def __init__(self) -> None:
        self.is_starting = threading.Event()
        self.is_killed = threading.Event()
        self.may_end = threading.Event()

    def start(self) -> None:
        self.is_starting.set()
        self.may_end.wait(WITHIN_S)
        raise StackNotReadyError("stopped while it started")

    def kill(self) -> None:
        self.is_killed.set()


@pytest.mark.parametrize(
    ("module", "context"),
    [(run, lambda directory: run.started(directory, ())), (monitored, monitored.monitored)],
    ids=["started", "monitored"],
)
async def test_the_context_is_left_when_the_start_has_ended(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: object,
    context: Callable[[Path], AbstractAsyncContextManager[Any]],
) -> None:
    slow = Slow()
    monkeypatch.setattr(module, "Stack", lambda *_, **__: slow)

    async def use() -> None:
        async with context(tmp_path):
            pass

    using = asyncio.create_task(use())
    try:
        assert await asyncio.to_thread(slow.is_starting.wait, WITHIN_S)
        using.cancel()
        assert await asyncio.to_thread(slow.is_killed.wait, WITHIN_S)
        done, _ = await asyncio.wait({using}, timeout=0.1)
        assert not done
    finally:
        slow.may_end.set()
    await asyncio.wait({using})
    assert using.cancelled()
