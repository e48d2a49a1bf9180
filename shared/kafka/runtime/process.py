"""A service's process around its work: settings, logs, telemetry, signals, exit code."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, TypeVar

import uvloop
from aiohttp import web

from shared.eos.errors import EXIT_FENCED, EosError, FencedError, UnsafeSettingsError
from shared.kafka.admin.clock import ClockError
from shared.kafka.admin.rights import check_rights
from shared.kafka.client.access import access
from shared.kafka.client.errors import KafkaUnavailableError, TopicMismatchError, denial
from shared.settings import EXIT_CONFIG, ServiceSettings, SettingsError, load
from shared.telemetry import logs, metrics
from shared.telemetry.server import Health, TelemetryServer, Watchdog

S = TypeVar("S", bound=ServiceSettings)

REFUSED: Final[tuple[type[Exception], ...]] = (
    SettingsError,
    UnsafeSettingsError,
    TopicMismatchError,
    ClockError,
    ValueError,
)
"""Restarting does not help: a setting, a topic or the clock must be corrected."""
AGAIN: Final[tuple[type[Exception], ...]] = (KafkaUnavailableError, OSError)
"""Restarting helps: no cluster, or a port that the predecessor still holds."""
TERSE: Final[Mapping[str, int]] = {"aiokafka": logging.WARNING}  # it logs every connection and join at INFO

log = logging.getLogger(__name__)


class Process(NamedTuple):
    """A process, for a service's work."""

    stop: asyncio.Event  # set by SIGTERM and SIGINT
    health: Health  # for `/readyz`
    stack: AsyncExitStack  # closed when the work has ended; what must be held open goes onto it


def run_process(
    name: str,
    settings_class: type[S],
    work: Callable[[S, Process], Awaitable[int]],
    *,
    missing: Mapping[str, str],
    refused: tuple[type[Exception], ...] = (),
    again: tuple[type[Exception], ...] = (),
    levels: Mapping[str, int] = TERSE,
    routes: Callable[[S, Health], Iterable[web.RouteDef]] = lambda *_: (),
) -> int:
    """Run a service's work, its metrics served and its event loop watched, until SIGTERM or SIGINT.

    Returns the exit code: the one that `work` returns (0 after a stop), 75 for a restart, or 78 if settings, topics,
    rights or the clock must be corrected first.

    Args:
        missing: what readiness waits for at first, and why.
        refused: further errors that need a correction before a restart.
        again: further errors that a restart may solve.
        levels: log levels of libraries, by logger.
        routes: returns routes that the port of the metrics serves as well.
    """

    async def run(settings: S) -> int:
        health = Health(**missing)
        async with AsyncExitStack() as stack:
            process = Process(stop_on_signals(), health, stack)
            stack.enter_context(Watchdog())
            more = routes(settings, health)
            server = TelemetryServer(settings.metrics_port, health, host=settings.metrics_host, more=more)
            await stack.enter_async_context(server)
            cluster = access(settings)
            if cluster.tls is not None:
                for certificate, expires in cluster.tls.expiries().items():
                    metrics.CERTIFICATE_EXPIRES.labels(certificate).set(expires.timestamp())
            await check_rights(cluster, name)
            # What was imported stays: each full collection would traverse it, and stop the event loop for 60 ms.
            # Python delays a full collection until new objects are a quarter of what the last one left. The second one
            # leaves nothing; after the first alone, the cycles that lost connections leave would wait for long
            gc.collect()
            gc.freeze()
            gc.collect()
            return await work(settings, process)

    def served(settings: S) -> int:
        # Half of libuv's threads resolve names, two by default: as many dead names, and no live one would be resolved
        os.environ.setdefault("UV_THREADPOOL_SIZE", "16")
        return uvloop.run(run(settings))

    return exit_code(name, settings_class, served, refused=refused, again=again, levels=levels)


def exit_code(
    name: str,
    settings_class: type[S],
    work: Callable[[S], int],
    *,
    refused: tuple[type[Exception], ...] = (),
    again: tuple[type[Exception], ...] = (),
    levels: Mapping[str, int] = TERSE,
) -> int:
    """As `run_process`, for work without an event loop."""
    try:
        settings = load(settings_class)
    except SettingsError as error:
        logs.configure(name, "-")
        return _ended("settings refused", error, EXIT_CONFIG)
    logs.configure(name, settings.instance, level=logging.getLevelNamesMapping()[settings.log_level])
    for library, level in levels.items():
        logging.getLogger(library).setLevel(level)
    try:
        return work(settings)
    except REFUSED + refused as error:
        return _ended("settings refused", error, EXIT_CONFIG)
    except AGAIN + again + (EosError,) as error:
        reason = denial(error, access(settings))
        if reason is not None:
            return _ended("denied", reason, EXIT_CONFIG)
        if not isinstance(error, EosError):
            return _ended("cannot start", error, EXIT_FENCED)
        return _ended("fenced" if isinstance(error, FencedError) else "fatal", error, EXIT_FENCED)


def _ended(event: str, error: Exception, code: int) -> int:
    log.error(event, extra={"reason": str(error)})  # no stack: the message says what to change
    return code


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_first_ends(*work: Coroutine[Any, Any, object]) -> None:
    """Run all work until the first part of it ends, then cancel the rest; raise that part's error."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
