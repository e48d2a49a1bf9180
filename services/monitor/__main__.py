"""Wires the monitor. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import sys
from contextlib import AsyncExitStack

import uvloop

from services.monitor.service import CLUSTER, Monitor
from shared.eos.errors import EXIT_FENCED
from shared.kafka.brokers import Brokers
from shared.settings import EXIT_CONFIG, MonitorSettings, SettingsError, load
from shared.signals import stop_on_signals
from shared.telemetry import logs
from shared.telemetry.health import Health
from shared.telemetry.server import TelemetryServer
from shared.telemetry.watchdog import Watchdog

log = logging.getLogger("services.monitor")


def main() -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    try:
        settings = load(MonitorSettings)
    except SettingsError as error:
        logs.configure("monitor", "-")
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the message says what to change
        return EXIT_CONFIG
    logs.configure("monitor", settings.instance, level=logging.getLevelNamesMapping()[settings.log_level])
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what matters of it comes as an error
    try:
        uvloop.run(serve(settings))
    except ValueError as error:
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_CONFIG
    except OSError as error:  # a port that its predecessor still holds
        log.error("cannot start", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_FENCED
    return 0


async def serve(settings: MonitorSettings) -> None:
    """Ask and serve until a signal. A cluster that does not answer is what it is there to tell: it goes on asking."""
    stop = stop_on_signals()
    health = Health(**{CLUSTER: "not asked yet"})
    async with AsyncExitStack() as stack:
        stack.enter_context(Watchdog())
        await stack.enter_async_context(TelemetryServer(settings.metrics_port, health, host=settings.metrics_host))
        brokers = Brokers(settings.bootstrap_servers, client_id="monitor", answer_s=settings.answer_timeout_s)
        await stack.enter_async_context(brokers)
        await Monitor(brokers, health, interval_s=settings.interval_s).run(stop)


if __name__ == "__main__":
    sys.exit(main())
