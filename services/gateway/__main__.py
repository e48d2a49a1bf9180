"""Wires the gateway: HTTP in, payments.raw out. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from services.gateway.access import Access, RateLimiter
from services.gateway.audit import Audit
from services.gateway.audit_log import AuditLog
from services.gateway.outcomes import View
from services.gateway.owners import Owners
from services.gateway.service import Gateway
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_ACCOUNTS, OPERATIONS_AUDIT, PAYMENTS_RAW
from shared.http.hosts import Hosts
from shared.http.keyfile import KeyFile
from shared.http.serving import runner_of
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.installation import ownership
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.lineage.outcome import Outcome, outcome
from shared.kafka.runtime.process import Process, run_process, until_first_ends
from shared.settings import GatewaySettings

KEYS_VARIABLE: Final = "ONCE_GATEWAY_API_KEYS_FILE"
STOP_MARGIN_S = 1.0  # for requests under way at a stop, beyond the time in which Kafka must have answered

log = logging.getLogger("services.gateway")


async def serve(settings: GatewaySettings, process: Process) -> int:
    """Serve until a signal; then take no more, finish what is under way, flush.

    It is ready once it knows the owners of accounts. From then on it stays ready while Kafka is away: its 503 says more
    to a client than a refused connection.
    """
    brokers, timeout_s = access(settings), settings.accept_timeout_s
    audit = Audit(settings.instance)
    key_file, admission = guard(settings, audit)

    async def find(partition: int, offset: int, is_meant: Callable[[Record], bool]) -> Outcome:
        skew_s_max = settings.clock_skew_s_max
        return await outcome(
            brokers, partition, offset, deadline_s=timeout_s, clock_skew_s_max=skew_s_max, is_meant=is_meant
        )

    writer = IdempotentWriter(brokers, client_id="gateway", request_timeout_s=timeout_s)
    owners, view = Owners(brokers), View(settings.view_url)
    gateway = Gateway(
        writer,
        find,
        admission,
        owners,
        view,
        Hosts([settings.host, *settings.hosts.split(",")]),
        partitions=settings.partitions,
        accept_timeout_s=timeout_s,
        requests_in_flight_max=settings.requests_in_flight_max,
        body_bytes_max=settings.body_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
    )
    await check_topics(brokers, [PAYMENTS_RAW, LEDGER_ACCOUNTS, OPERATIONS_AUDIT], settings.partitions)
    await ownership(brokers)  # without the record, the ledger would count every payment as the operator's
    await check_clock(brokers, settings.clock_skew_s_max)
    audit_log = AuditLog(audit, writer, settings.partitions, time.time_ns)
    async with writer, view:
        await owners.start()
        runner = runner_of(
            gateway.app(), idle_timeout_s=settings.idle_timeout_s, shutdown_timeout_s=timeout_s + STOP_MARGIN_S
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
            process.health.met("kafka")
            log.info("serving", extra={"host": settings.host, "port": runner.addresses[0][1]})
            await until_first_ends(process.stop.wait(), key_file.watch(admission.use), audit_log.run(), owners.follow())
            process.health.missing("gateway", "stopping")
        finally:
            await runner.cleanup()
            await audit_log.flush(stopping=True)
    return 0


def guard(settings: GatewaySettings, audit: Audit) -> tuple[KeyFile, Access]:
    """The file of keys of the settings, and the access control by it.

    Raises ValueError, with what to change: there is no such file, or a limit limits nothing or everything.
    """
    if not settings.api_keys_file:
        raise ValueError(
            f"{KEYS_VARIABLE} is empty: name a file of keys in it; `once clients add NAME --file FILE` makes one"
        )
    if not 0 <= settings.rate_per_s < math.inf or settings.burst < 0:
        raise ValueError("ONCE_GATEWAY_RATE_PER_S and ONCE_GATEWAY_BURST must not be below 0; 0 is no limit")
    if settings.burst and not settings.rate_per_s:
        raise ValueError("ONCE_GATEWAY_BURST limits nothing without ONCE_GATEWAY_RATE_PER_S: set both or none")
    if not 0 < settings.idle_timeout_s < math.inf:
        raise ValueError("ONCE_GATEWAY_IDLE_TIMEOUT_S must be above 0: silent connections would stay for ever")
    key_file = KeyFile(settings.api_keys_file, KEYS_VARIABLE)
    limiter = RateLimiter(settings.rate_per_s, settings.burst) if settings.rate_per_s else None
    return key_file, Access(key_file.keys, limiter, audit, time.monotonic_ns, time.time_ns)


if __name__ == "__main__":
    quiet = {"aiokafka": logging.CRITICAL}  # what matters of it comes as an error
    sys.exit(run_process("gateway", GatewaySettings, serve, missing={"kafka": "not connected"}, levels=quiet))
