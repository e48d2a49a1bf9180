"""Wires the gateway: HTTP in, payments.raw out. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import sys
from collections.abc import Callable

from aiohttp import web

from services.gateway.service import Gateway
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.access import access
from shared.kafka.admin import check_topics
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.outcome import Outcome, outcome
from shared.kafka.process import Process, run_process
from shared.settings import GatewaySettings

STOP_MARGIN_S = 1.0
"""Seconds that a stop leaves requests under way beyond the time in which Kafka must have answered."""

log = logging.getLogger("services.gateway")


async def serve(settings: GatewaySettings, process: Process) -> int:
    """Serve until a signal; then take no more, finish what is under way, flush.

    Once connected it stays ready while Kafka is away: its 503 tells a client more than no gateway at all would.
    """
    brokers, timeout_s = access(settings), settings.accept_timeout_s

    async def find(partition: int, offset: int, is_meant: Callable[[Record], bool]) -> Outcome:
        return await outcome(brokers, partition, offset, deadline_s=timeout_s, is_meant=is_meant)

    writer = IdempotentWriter(brokers, client_id="gateway", request_timeout_s=timeout_s)
    gateway = Gateway(writer, find, accept_timeout_s=timeout_s, requests_in_flight_max=settings.requests_in_flight_max)
    await check_topics(brokers, [PAYMENTS_RAW])
    async with writer:
        runner = web.AppRunner(
            gateway.app(), access_log=None, auto_decompress=False, shutdown_timeout=timeout_s + STOP_MARGIN_S
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
            process.health.met("kafka")
            log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
            await process.stop.wait()
            process.health.missing("gateway", "stopping")
        finally:
            await runner.cleanup()
    return 0


if __name__ == "__main__":
    quiet = {"aiokafka": logging.CRITICAL}  # what matters of it comes as an error
    sys.exit(run_process("gateway", GatewaySettings, serve, missing={"kafka": "not connected"}, levels=quiet))
