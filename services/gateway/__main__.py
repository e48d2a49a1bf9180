"""Wires the gateway: HTTP in, payments.raw out. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack

import uvloop
from aiohttp import web

from services.gateway.service import Gateway
from shared.eos.errors import EXIT_FENCED
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.admin import check_topics
from shared.kafka.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.outcome import Outcome, outcome
from shared.settings import EXIT_CONFIG, GatewaySettings, SettingsError, load
from shared.signals import stop_on_signals
from shared.telemetry import logs
from shared.telemetry.health import Health
from shared.telemetry.server import TelemetryServer
from shared.telemetry.watchdog import Watchdog

STOP_MARGIN_S = 1.0
"""Seconds that a stop leaves requests under way beyond the time in which Kafka must have answered."""

log = logging.getLogger("services.gateway")


def main() -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    try:
        settings = load(GatewaySettings)
    except SettingsError as error:
        logs.configure("gateway", "-")
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the message says what to change
        return EXIT_CONFIG
    logs.configure("gateway", settings.instance, level=logging.getLevelNamesMapping()[settings.log_level])
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what matters of it comes as an error
    try:
        uvloop.run(serve(settings))
    except (TopicMismatchError, ValueError) as error:
        log.error("settings refused", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_CONFIG
    except (KafkaUnavailableError, OSError) as error:  # no cluster, or a port that its predecessor still holds
        log.error("cannot start", extra={"reason": str(error)})  # noqa: TRY400 # the same
        return EXIT_FENCED
    return 0


async def serve(settings: GatewaySettings) -> None:
    """Serve until a signal; then take no more, finish what is under way, flush.

    Once connected it stays ready while Kafka is away: its 503 tells a client more than no gateway at all would.
    """
    stop = stop_on_signals()
    health = Health(kafka="not connected")
    brokers, timeout_s = settings.bootstrap_servers, settings.accept_timeout_s

    async def find(partition: int, offset: int, is_meant: Callable[[Record], bool]) -> Outcome:
        return await outcome(brokers, partition, offset, deadline_s=timeout_s, is_meant=is_meant)

    writer = IdempotentWriter(brokers, client_id="gateway", request_timeout_s=timeout_s)
    gateway = Gateway(writer, find, accept_timeout_s=timeout_s, requests_in_flight_max=settings.requests_in_flight_max)
    async with AsyncExitStack() as stack:
        stack.enter_context(Watchdog())
        await stack.enter_async_context(TelemetryServer(settings.metrics_port, health, host=settings.metrics_host))
        await check_topics(brokers, [PAYMENTS_RAW])
        async with writer:
            runner = web.AppRunner(
                gateway.app(), access_log=None, auto_decompress=False, shutdown_timeout=timeout_s + STOP_MARGIN_S
            )
            await runner.setup()
            try:
                await web.TCPSite(runner, settings.host, settings.port).start()
                health.met("kafka")
                log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
                await stop.wait()
                health.missing("gateway", "stopping")
            finally:
                await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
