"""Entry point of the monitor. Exit codes as for every service: 0, 75 (start again), 78 (settings)."""

import logging
import sys

from services.monitor.service import CLUSTER, Monitor
from shared.kafka.client.access import access
from shared.kafka.client.brokers import Brokers
from shared.kafka.runtime.process import Process, run_process
from shared.settings import MonitorSettings


async def serve(settings: MonitorSettings, process: Process) -> int:
    """Query the cluster and serve metrics until a signal. An unreachable cluster is reported, and does not end it."""
    brokers = Brokers(access(settings), client_id="monitor", answer_s=settings.answer_timeout_s)
    await process.stack.enter_async_context(brokers)
    await Monitor(brokers, process.health, interval_s=settings.interval_s).run(process.stop)
    return 0


if __name__ == "__main__":
    quiet = {"aiokafka": logging.CRITICAL}  # errors reach the monitor as exceptions
    sys.exit(run_process("monitor", MonitorSettings, serve, missing={CLUSTER: "not asked yet"}, levels=quiet))
