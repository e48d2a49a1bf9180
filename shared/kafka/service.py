"""What every read-process-write service's `__main__` does: settings, logs, telemetry, runtime, exit code."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import uvloop

from shared.eos.errors import EXIT_FENCED, UnsafeSettingsError
from shared.kafka.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.partition import Workload
from shared.kafka.runtime import ASSIGNMENT, Runtime
from shared.settings import EXIT_CONFIG, RuntimeSettings, SettingsError, load
from shared.signals import stop_on_signals
from shared.telemetry import logs
from shared.telemetry.health import Health
from shared.telemetry.server import TelemetryServer
from shared.telemetry.watchdog import Watchdog

S = TypeVar("S", bound=RuntimeSettings)

Build = Callable[[S, AsyncExitStack], Awaitable[Workload]]

log = logging.getLogger(__name__)


def run_service(name: str, settings_class: type[S], build: Build[S], topics: list[str]) -> int:
    """Run a service until SIGTERM or SIGINT.

    Args:
        name: the service's, also its consumer group.
        settings_class: read from the environment.
        build: makes the workload; what it must hold open goes onto the exit stack.
        topics: every topic the service touches.

    Returns:
        The exit code: 0 after a stop, 75 to be started again, 78 for settings or topics that must be changed first.
    """
    try:
        settings = load(settings_class)
    except SettingsError as error:
        logs.configure(name, "-")
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the message says what to change
        return EXIT_CONFIG
    logs.configure(name, settings.instance, level=logging.getLevelNamesMapping()[settings.log_level])
    logging.getLogger("aiokafka").setLevel(logging.WARNING)  # it tells of every connection and join at INFO
    try:
        return uvloop.run(_run(settings, build, topics))
    except (UnsafeSettingsError, TopicMismatchError, ValueError) as error:
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_CONFIG
    except KafkaUnavailableError as error:
        log.error("no cluster", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_FENCED


async def _run(settings: S, build: Build[S], topics: list[str]) -> int:
    stop = stop_on_signals()
    health = Health(kafka="not connected", **{ASSIGNMENT: "no partitions assigned yet"})
    async with AsyncExitStack() as stack:
        stack.enter_context(Watchdog())
        await stack.enter_async_context(TelemetryServer(settings.metrics_port, health, host=settings.metrics_host))
        workload = await build(settings, stack)
        return await Runtime(workload, settings, topics, health).run(stop)
