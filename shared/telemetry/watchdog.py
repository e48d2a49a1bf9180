"""Ends a process whose event loop is blocked, so that its supervisor restarts it.

A process with a blocked loop answers no probe, sends no heartbeat and commits nothing. Nothing else can show why, so
the stacks of all threads go to stderr first.

Invariant: a process that was stopped as a whole (SIGSTOP, a suspended machine) does not count as blocked, because the
watching thread was stopped with it.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHECK_S = 1.0
CHECKS_MAX = 30
EXIT_STUCK = 75
"""As for fenced and fatal errors: restart the process (EX_TEMPFAIL of sysexits.h)."""


def _end() -> None:
    print("the event loop is blocked; the stack of each thread:", file=sys.stderr)
    faulthandler.dump_traceback(file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_STUCK)


class Watchdog:
    """Watches the running event loop while its context is open: it checks the loop every `check_s` seconds.

    `end` is called by the watching thread when more than `checks_max` checks in a row were not answered.
    """

    def __init__(self, check_s: float = CHECK_S, checks_max: int = CHECKS_MAX, end: Callable[[], None] = _end) -> None:
        self._check_s = check_s
        self._checks_max = checks_max
        self._end = end
        self._closed = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        unanswered = 0
        self._ask()
        while not self._closed.wait(self._check_s):
            if self._answered.is_set():
                unanswered = 0
                self._ask()
                continue
            unanswered += 1
            if unanswered > self._checks_max:
                self._end()
                return

    def _ask(self) -> None:
        self._answered.clear()
        self._loop.call_soon_threadsafe(self._answered.set)
