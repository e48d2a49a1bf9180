"""The exactly-once runtime: memberships of a consumer group, one after the other.

A membership ends by a stop, or because this instance can no longer know what was committed: it was fenced, removed
from the group, or did not reach the cluster. Then it drops everything and rejoins. An instance that is fenced again
soon has a successor under the same name. That, and a fatal error, end the process with exit code 75. Its supervisor
starts it again.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, TypeVar

from shared.eos.crash import CrashPoints
from shared.eos.errors import EXIT_FENCED, EosError, FencedError, RejoinError, UnsafeSettingsError
from shared.eos.safety import refuse_timeout_above, refuse_unsafe
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.configs import broker_config
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.client.errors import is_denied, refuse_handshake
from shared.kafka.client.measured import show_transactions
from shared.kafka.runtime.instance import ASSIGNMENT, Instance
from shared.kafka.runtime.process import Process, run_process
from shared.kafka.runtime.worker import Workload
from shared.settings import RuntimeSettings
from shared.telemetry import metrics
from shared.telemetry.instruments import at_zero
from shared.telemetry.server import Health

REJOIN_BACKOFF_S: Final = 0.5  # a cluster that does not answer is not asked in a tight loop
FENCED_AGAIN_S: Final = 60.0
"""An own request that arrived late fences once. A second process under the same name fences again when it rejoins."""

log = logging.getLogger(__name__)


def act(action: str) -> None:
    """Act at a crash point, without exit handlers or a flush."""
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)


class Runtime:
    """Runs a service until it is asked to stop.

    Args:
        settings: checked before anything is connected.
        topics: every topic the service uses; each must have ONCE_PARTITIONS partitions.
    """

    def __init__(self, workload: Workload, settings: RuntimeSettings, topics: list[str], health: Health) -> None:
        refuse_unsafe(settings)
        self._workload = workload
        self._settings = settings
        self._topics = topics
        self._health = health
        self._crash_points = CrashPoints(settings.crash_point, act)
        show_transactions()
        at_zero(metrics.SOURCE_REPEATS, [workload.topic])

    async def run(self, stop: asyncio.Event) -> int:
        """Work until `stop` is set; return the exit code: 0 after a stop, 75 when fenced or fatal.

        Raises:
            UnsafeSettingsError: the brokers' limits, or what a scope found, refuse a setting.
            TopicMismatchError: a topic is missing, or has another number of partitions.
            ClockError: this machine's clock is far off.
            EosError: the brokers denied something (`is_denied`).
            DeniedError: they refuse the certificate, at the start or at work.
            KafkaUnavailableError: no broker answers.
        """
        brokers = access(self._settings)
        refuse_timeout_above(self._settings, int(await broker_config(brokers, "transaction.max.timeout.ms")))
        await check_topics(brokers, self._topics, self._settings.partitions)
        await check_clock(brokers, self._settings.clock_skew_s_max)
        self._health.met("kafka")
        fenced_s = -FENCED_AGAIN_S
        while not stop.is_set():
            instance = Instance(self._workload, self._settings, self._health, self._crash_points)
            try:
                await instance.run(stop)
            except (RejoinError, FencedError) as error:
                if is_denied(error):
                    raise  # to be changed first: it would be denied again
                if isinstance(error, FencedError):
                    if time.monotonic() - fenced_s < FENCED_AGAIN_S:
                        log.error("fenced", extra={"reason": str(error)})  # noqa: TRY400 # no defect, no traceback wanted
                        return EXIT_FENCED
                    fenced_s = time.monotonic()
                log.warning("leaving the group to rejoin", extra={"reason": str(error)})
                if brokers.tls is not None and not stop.is_set():
                    # The client says only that brokers are gone: a certificate that they refuse never comes back
                    await refuse_handshake(brokers)
                await _pause(stop, REJOIN_BACKOFF_S)
            except UnsafeSettingsError:
                raise
            except EosError as error:
                if is_denied(error):
                    raise  # the same
                log.error("fatal", extra={"reason": str(error)})  # noqa: TRY400 # its message says what to do
                return EXIT_FENCED
        return 0


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


S = TypeVar("S", bound=RuntimeSettings)

Build = Callable[[S, AsyncExitStack], Awaitable[Workload]]


def run_service(name: str, settings_class: type[S], build: Build[S], topics: list[str]) -> int:
    """Run a service until SIGTERM or SIGINT, and return the process's exit code.

    It raises nothing: each error is logged as one line, with what to change. It serves /metrics, /healthz and /readyz.

    Args:
        name: the service's, also its consumer group, and the principal whose rights are checked where brokers use TLS.
        settings_class: read from the environment, by the variables in docs/settings.md.
        build: makes the workload; what it must hold open goes onto the exit stack.
        topics: every topic that the service uses. Each must exist, with ONCE_PARTITIONS partitions.

    Returns:
        0: it was stopped. Its transaction has ended, and others have its partitions already.
        75: fenced, fatal, or no cluster answers: start it again. Nothing that it did not commit is visible.
        78: a setting, a topic, a right or the clock must be corrected first.
    """

    async def work(settings: S, process: Process) -> int:
        workload = await build(settings, process.stack)
        return await Runtime(workload, settings, topics, process.health).run(process.stop)

    missing = {"kafka": "not connected", ASSIGNMENT: "no partitions assigned yet"}
    return run_process(name, settings_class, work, missing=missing)
