"""Wires the gateway: HTTP in, payments.raw out. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from services.gateway.access import Access, RateLimiter
from services.gateway.keyfile import VARIABLE, KeyFile
from services.gateway.service import Gateway
from shared.addresses import is_loopback
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.http.serving import SERVER_LOG
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.lineage.outcome import Outcome, outcome
from shared.kafka.runtime.process import Process, run_process
from shared.settings import GatewaySettings

STOP_MARGIN_S = 1.0  # for requests under way at a stop, beyond the time in which Kafka must have answered

log = logging.getLogger("services.gateway")


async def serve(settings: GatewaySettings, process: Process) -> int:
    """Serve until a signal; then take no more, finish what is under way, flush.

    Once connected it stays ready while Kafka is away: its 503 tells a client more than no gateway at all would.
    """
    brokers, timeout_s = access(settings), settings.accept_timeout_s
    key_file, keyholders = guard(settings)

    async def find(partition: int, offset: int, is_meant: Callable[[Record], bool]) -> Outcome:
        return await outcome(brokers, partition, offset, deadline_s=timeout_s, is_meant=is_meant)

    writer = IdempotentWriter(brokers, client_id="gateway", request_timeout_s=timeout_s)
    gateway = Gateway(
        writer,
        find,
        keyholders,
        partitions=settings.partitions,
        accept_timeout_s=timeout_s,
        requests_in_flight_max=settings.requests_in_flight_max,
        body_bytes_max=settings.body_bytes_max,
    )
    await check_topics(brokers, [PAYMENTS_RAW], settings.partitions)
    await check_clock(brokers, settings.clock_skew_s_max)
    async with writer:
        runner = web.AppRunner(
            gateway.app(),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=settings.idle_timeout_s,
            logger=SERVER_LOG,
            shutdown_timeout=timeout_s + STOP_MARGIN_S,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
            process.health.met("kafka")
            log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
            async with watched(key_file, keyholders):
                await process.stop.wait()
            process.health.missing("gateway", "stopping")
        finally:
            await runner.cleanup()
    return 0


def guard(settings: GatewaySettings) -> tuple[KeyFile | None, Access]:
    """The access control of the settings, and the file of its keys.

    Raises ValueError, with what to change, if everybody on a network would be admitted, or nobody.
    """
    if not settings.api_keys_file and not is_loopback(settings.host):
        raise ValueError(
            f"ONCE_GATEWAY_HOST is {settings.host!r} and {VARIABLE} is empty: whoever reaches that address could send "
            f"payments; name a file of keys in {VARIABLE} (`once keys new` makes them), or bind to 127.0.0.1"
        )
    if not 0 <= settings.rate_per_s < math.inf or settings.burst < 0:
        raise ValueError("ONCE_GATEWAY_RATE_PER_S and ONCE_GATEWAY_BURST must not be below 0; 0 is no limit")
    if settings.burst and not settings.rate_per_s:
        raise ValueError("ONCE_GATEWAY_BURST limits nothing without ONCE_GATEWAY_RATE_PER_S: set both or none")
    if not 0 < settings.idle_timeout_s < math.inf:
        raise ValueError("ONCE_GATEWAY_IDLE_TIMEOUT_S must be above 0: silent connections would stay for ever")
    key_file = KeyFile(settings.api_keys_file) if settings.api_keys_file else None
    limiter = RateLimiter(settings.rate_per_s, settings.burst) if settings.rate_per_s else None
    return key_file, Access(key_file.keys if key_file else None, limiter, time.monotonic_ns)


@asynccontextmanager
async def watched(key_file: KeyFile | None, access: Access) -> AsyncIterator[None]:
    """Apply changed keys within the context. A watch that dies ends the gateway, because it would miss a change."""
    if key_file is None:
        yield
        return
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(key_file.watch(access.use), name="api-keys")
        yield
        watching.cancel()


if __name__ == "__main__":
    quiet = {"aiokafka": logging.CRITICAL}  # what matters of it comes as an error
    sys.exit(run_process("gateway", GatewaySettings, serve, missing={"kafka": "not connected"}, levels=quiet))
