"""Entry point of the monitor. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import sys

from aiohttp import web

from services.monitor.interface import Interface
from services.monitor.service import CLUSTER, Monitor, Shown
from shared.http.hosts import Hosts
from shared.kafka.client.access import access
from shared.kafka.client.brokers import Brokers
from shared.kafka.runtime.process import Process, run_process
from shared.settings import MonitorSettings
from shared.telemetry.server import Health


def main() -> int:
    """Query the cluster and serve the results until a signal. An unreachable cluster is reported, and ends nothing."""
    shown = Shown()

    def routes(settings: MonitorSettings, health: Health) -> list[web.RouteDef]:
        hosts = Hosts([settings.metrics_host, *settings.hosts.split(",")])
        return Interface(
            access(settings), lambda: shown.picture, lambda: health.reasons.get(CLUSTER, ""), hosts
        ).routes()

    async def serve(settings: MonitorSettings, process: Process) -> int:
        brokers = Brokers(access(settings), client_id="monitor", answer_s=settings.answer_timeout_s)
        await process.stack.enter_async_context(brokers)
        await Monitor(brokers, process.health, shown, interval_s=settings.interval_s).run(process.stop)
        return 0

    quiet = {"aiokafka": logging.CRITICAL}  # errors reach the monitor as exceptions
    missing = {CLUSTER: "not asked yet"}
    return run_process("monitor", MonitorSettings, serve, missing=missing, levels=quiet, routes=routes)


if __name__ == "__main__":
    sys.exit(main())
