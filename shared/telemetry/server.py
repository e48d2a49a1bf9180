"""The telemetry endpoint of a service (/metrics, /healthz and /readyz over HTTP), its readiness, and its watchdog.

The watchdog ends a process whose event loop is blocked, so that its supervisor restarts it. Such a process answers no
probe, sends no heartbeat and commits nothing. Nothing else can show why, so the stacks of all threads go to stderr
first.

Invariant: each of these responses is made from memory only, off the event loop where it takes time, so that a scrape
never delays a transaction. A process that was stopped as a whole (SIGSTOP, a suspended machine) does not count as
blocked.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class Health:
    """Conditions that keep a service from being ready, each with its reason for the operator."""

    def __init__(self, **pending: str) -> None:
        self._reasons: dict[str, str] = dict(pending)

    @property
    def ready(self) -> bool:
        return not self._reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Return name and reason of each condition that is not met."""
        return dict(self._reasons)

    def met(self, condition: str) -> None:
        """Mark a condition as met; it need not have been missing."""
        self._reasons.pop(condition, None)

    def missing(self, condition: str, reason: str) -> None:
        self._reasons[condition] = reason


LOOPBACK = "127.0.0.1"
_SHUTDOWN_TIMEOUT_S = 1.0  # a scrape takes milliseconds; a stopping service does not wait longer for one


def routes(health: Health, registry: CollectorRegistry = REGISTRY) -> list[web.RouteDef]:
    """Return the three routes, for a service with an application of its own."""

    async def metrics(_: web.Request) -> web.Response:
        # In a thread: the process collector reads /proc, and the text grows with the number of series
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def readyz(_: web.Request) -> web.Response:
        status = 200 if health.ready else 503
        return web.json_response({"ready": health.ready, "reasons": health.reasons}, status=status)

    return [web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)]


class TelemetryServer:
    """Serves /metrics, /healthz, /readyz, and the routes of `more`, while its context is open.

    Port 0 takes a free one, see `port`. The host is loopback unless a container's network asks for another. Entering
    raises OSError when the port is taken.
    """

    def __init__(
        self,
        port: int,
        health: Health,
        *,
        host: str = LOOPBACK,
        registry: CollectorRegistry = REGISTRY,
        more: Iterable[web.RouteDef] = (),
    ) -> None:
        self._port = port
        self._host = host
        app = web.Application()
        app.add_routes([*routes(health, registry), *more])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)

    @property
    def port(self) -> int:
        return self._port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()


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
