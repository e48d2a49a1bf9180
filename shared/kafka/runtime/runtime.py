"""The exactly-once runtime: a consumer group member whose partitions each work under their own transactional.id.

A session is one membership of the group. It ends by a stop, or because a scope can no longer know what was committed.
Then the member leaves, drops everything and rejoins, and the next assignment finds out. A fenced or fatal error ends
the process with exit code 75, for its supervisor to start it again.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from shared.eos.crash import CrashPoints
from shared.eos.errors import EXIT_FENCED, EosError, FencedError, RejoinError, UnsafeSettingsError
from shared.eos.safety import refuse_timeout_above, refuse_unsafe
from shared.events.partitions import PARTITIONS
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.rights import refuse_ungranted
from shared.kafka.admin.topics import broker_config, check_topics
from shared.kafka.client.access import access
from shared.kafka.client.errors import is_denied, refuse_handshake
from shared.kafka.client.measured import show_transactions
from shared.kafka.runtime.partition import Workload
from shared.kafka.runtime.process import Process, run_process
from shared.kafka.runtime.session import ASSIGNMENT, Session
from shared.settings import RuntimeSettings
from shared.telemetry import metrics
from shared.telemetry.instruments import at_zero
from shared.telemetry.server import Health

REJOIN_BACKOFF_S = 0.5  # a cluster that does not answer is not asked in a tight loop

log = logging.getLogger(__name__)


def act(action: str) -> None:
    """Act at a crash point, without exit handlers or a flush."""
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)


class Runtime:
    """Runs a service until it is asked to stop.

    Args:
        settings: checked before anything is connected.
        topics: every topic the service uses; their partitions are checked against the catalogue.
    """

    def __init__(self, workload: Workload, settings: RuntimeSettings, topics: list[str], health: Health) -> None:
        inputs = [(workload.topic, partition) for partition in range(PARTITIONS)]
        refuse_unsafe(settings, workload.service, inputs)
        refuse_ungranted(settings, workload.service, inputs)
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
            TopicMismatchError: a topic is missing or differs from the catalogue.
            ClockError: this machine's clock is far off.
            EosError: the brokers denied something (`is_denied`).
            DeniedError: they refuse the certificate, at the start or at work.
            KafkaUnavailableError: no broker answers.
        """
        brokers = access(self._settings)
        refuse_timeout_above(self._settings, int(await broker_config(brokers, "transaction.max.timeout.ms")))
        await check_topics(brokers, self._topics)
        await check_clock(brokers, self._settings.clock_skew_s_max)
        self._health.met("kafka")
        while not stop.is_set():
            session = Session(self._workload, self._settings, self._health, self._crash_points)
            try:
                await session.run(stop)
            except RejoinError as error:
                if is_denied(error):
                    raise  # to be changed first: it would be denied again
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
                kind = "fenced" if isinstance(error, FencedError) else "fatal"
                log.error(kind, extra={"reason": str(error)})  # noqa: TRY400 # fenced is no defect, no traceback wanted
                return EXIT_FENCED
        return 0


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


S = TypeVar("S", bound=RuntimeSettings)

Build = Callable[[S, AsyncExitStack], Awaitable[Workload]]


def run_service(name: str, settings_class: type[S], build: Build[S], topics: list[str]) -> int:
    """Run a service until SIGTERM or SIGINT, and return the exit code of `run_process`.

    Args:
        name: the service's, also its consumer group.
        build: makes the workload; what it must hold open goes onto the exit stack.
        topics: every topic the service uses.
    """

    async def work(settings: S, process: Process) -> int:
        workload = await build(settings, process.stack)
        return await Runtime(workload, settings, topics, process.health).run(process.stop)

    missing = {"kafka": "not connected", ASSIGNMENT: "no partitions assigned yet"}
    return run_process(name, settings_class, work, missing=missing)
