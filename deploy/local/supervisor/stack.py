"""The whole stack in one process: brokers, Redis, services and monitoring, and a thread that restarts what has ended.

`Stack` is for tests, drills and `once demo`; for `once up` it runs in a process of its own, see `daemon`. Brokers and
Redis come first, then topics, services and monitoring; to stop is the other way round.
"""

import asyncio
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from deploy.clients.enforcement import enforce
from deploy.clients.keyring import KeyringError
from deploy.clients.local import client_files, ensure_local
from deploy.local.jars import JarError
from deploy.local.kafka.cluster import KafkaNotReadyError, LocalKafka
from deploy.local.ports import LOOPBACK, NoFreePortError, free_ports
from deploy.local.process import ProcessDeadlineError
from deploy.local.redis.server import LocalRedis, RedisNotReadyError
from deploy.local.supervisor.component import Component, service_component
from deploy.local.supervisor.monitoring import Monitoring
from deploy.local.supervisor.state import START_DEADLINE_S
from deploy.local.supervisor.topology import MONITOR, SERVICES, Endpoints, ports_needed, service_specs
from deploy.security import redis_users
from deploy.security.certificates import CredentialsError
from deploy.security.files import make_once, secret
from shared.events.catalogue import REPLICATION_FACTOR
from shared.kafka.admin.acls import ensure_rules
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.access import Access, Bootstrap
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError, TopicMismatchError
from shared.settings import InstallationSettings, SettingsError

_POLL_S = 0.2
_SERVICE_STOP_DEADLINE_S = 10.0
START_ERRORS = (
    CredentialsError,
    DeniedError,
    JarError,
    KafkaNotReadyError,
    KafkaUnavailableError,
    KeyringError,
    NoFreePortError,
    OSError,
    ProcessDeadlineError,
    RedisNotReadyError,
    SettingsError,
    TopicMismatchError,
)
"""Errors of the infrastructure's start; each message names the cause."""

log = logging.getLogger(__name__)


class StackNotReadyError(RuntimeError):
    """A component was not ready in time; the message names it and shows the end of its log."""


class Stack:
    """Brokers, Redis, services and monitoring as children of this process.

    From `start` to `stop` a thread starts again whatever has ended, after a growing delay (`Backoff`): what a drill
    kills comes back by itself. What the machine refuses meanwhile, as with a full disk, is logged and tried again in
    each round.

    Args:
        directory: data goes to `data`, logs to `logs` in it.
        services: which services run, a subset of SERVICES; empty for the infrastructure only.
        partitions: of each topic; topics that are there with another number are refused.
        replication_factor: of the topics that are created, at most `brokers`; None is that, or 3 where there are more.
        heap_mb: the heap of each broker, MiB.
        monitoring: whether brokers and Redis serve figures too, and the monitor and a Prometheus run; see `monitoring`.
        secure: whether brokers and their clients speak mutual TLS under the rules of shared/kafka/admin/rules.py, and
            Redis likewise under those of deploy/security/redis_users.py. Certificates are in `data/credentials`.
        environment: further variables for every service.
        broker_metrics: whether the brokers serve figures, also without monitoring.
        broker_overrides: brokers' settings by Kafka's names, as in `LocalKafka`.
        start_deadline_s: seconds for Redis, and then for the brokers, to be ready at the start.
        prepare: called with the brokers when the topics are there, before the services start.
        on_state: called by the thread after each round with the components' states.

    Raises:
        PrerequisiteError: Java or redis-server is missing; with monitoring, Prometheus or its Redis exporter.
        UnknownServiceError: a service does not exist.
    """

    def __init__(
        self,
        directory: Path,
        *,
        services: Sequence[str] = SERVICES,
        brokers: int = 3,
        partitions: int = InstallationSettings.partitions,
        replication_factor: int | None = None,
        heap_mb: int = 512,
        monitoring: bool = False,
        secure: bool = False,
        environment: dict[str, str] | None = None,
        broker_metrics: bool = False,
        broker_overrides: Mapping[str, str] | None = None,
        start_deadline_s: float = START_DEADLINE_S,
        prepare: Callable[[Bootstrap], None] | None = None,
        on_state: Callable[["Stack"], None] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        logs = self.directory / "logs"
        data = self.directory / "data"
        self.kafka = LocalKafka(
            data / "kafka",
            brokers,
            heap_mb=heap_mb,
            log_directory=logs,
            metrics=monitoring or broker_metrics,
            overrides=broker_overrides,
            credentials=data / "credentials" if secure else None,
        )
        self.redis = LocalRedis(data / "redis", log_directory=logs, authority=self.kafka.authority)
        self.effects_directory = data / "effects"
        self.client_files = client_files(self.directory)
        endpoints = Endpoints(
            self.kafka.bootstrap_servers,
            self.redis.url,
            self.effects_directory,
            data / "webhook.key",
            data / "view" / "balances.sqlite",
            self.client_files.keys,
            partitions,
            self.kafka.authority,
            None if self.kafka.authority is None else self.redis.password_file(redis_users.OUTBOX),
        )
        names = tuple(dict.fromkeys((*services, MONITOR) if monitoring else services))
        specs = service_specs(names, endpoints, free_ports(ports_needed(names)))
        self._webhook_key_file = endpoints.webhook_key_file
        extra = environment or {}
        self.services = {spec.name: service_component(spec, logs, extra) for spec in specs}
        self.monitoring = Monitoring(data / "prometheus", logs, self.kafka, self.redis, specs) if monitoring else None
        self.complete = False
        self._partitions = partitions
        self._replication_factor = replication_factor or min(brokers, REPLICATION_FACTOR)
        self._infrastructure = [
            Component(process, partial(self.kafka.answers, node.node_id, 0.5), f"{LOOPBACK}:{node.port}")
            for node, process in zip(self.kafka.nodes, self.kafka.processes, strict=True)
        ]
        self._infrastructure.append(Component(self.redis.process, partial(self.redis.answers, 0.5), self.redis.url))
        self._start_deadline_s = start_deadline_s
        self._prepare = prepare
        self._on_state = on_state
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @property
    def access(self) -> Access:
        return self.kafka.access

    @property
    def components(self) -> list[Component]:
        return [*self._infrastructure, *self._clients]

    def start(self) -> None:
        """Start everything, and make the topics; returns when the services have been started, ready or not.

        Raises:
            START_ERRORS: the infrastructure did not come up, or a topic differs from the catalogue; or another thread
                has stopped the stack meanwhile.
        """
        self.kafka.start()
        self.redis.start()
        self._launch(self._infrastructure)
        self._watcher.start()
        self.redis.wait_ready(self._start_deadline_s)
        self.kafka.wait_ready(self._start_deadline_s)
        asyncio.run(ensure_topics(self.access, self._partitions, self._replication_factor))
        if self.access.tls is not None:
            asyncio.run(ensure_rules(self.access))
        asyncio.run(enforce(self.access, "once up"))  # over data from before; no ledger is at work
        ensure_local(self.client_files)
        self.effects_directory.mkdir(parents=True, exist_ok=True)
        make_once(self._webhook_key_file, secret)  # kept over restarts: subscribers know it
        if self._prepare is not None:
            self._prepare(self.access)
        self._launch(self.services.values())
        if self.monitoring is not None:
            self.monitoring.start()
        self.complete = True

    def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Wait until every component is ready.

        Raises:
            StackNotReadyError: not so after `deadline_s` seconds, or a service refused its settings.
        """
        deadline = time.monotonic() + deadline_s
        while missing := [component for component in self.components if not component.ready]:
            refused = [component for component in missing if component.snapshot().state == "failed"]
            if refused or time.monotonic() > deadline:
                first = (refused or missing)[0]
                shown = first.snapshot()
                raise StackNotReadyError(
                    f"{first.name} is {shown.state} after {deadline_s} s at most (last exit code"
                    f" {shown.last_exit_code}), the end of its log:\n{first.process.log_tail()}"
                )
            time.sleep(_POLL_S)

    def poll(self) -> None:
        """Do one round of supervision: restart what has ended and may be, then ask what is not known to be ready."""
        with self._lock:
            if self._stopping.is_set():
                return
            for component in self.components:
                self._attempt(component.name, partial(component.keep_running, time.monotonic()))
        for component in self.components:
            component.check(time.monotonic())

    def stop(self) -> None:
        """Stop services and monitoring, then Redis and the brokers, and wait; what does not end in time is killed."""
        self._release()
        for client in self._clients:
            client.process.request_stop()
        deadline = time.monotonic() + _SERVICE_STOP_DEADLINE_S
        for client in self._clients:
            # Not a second SIGTERM: it would end a process that has stopped, and is about to exit with 0
            client.process.wait_or_kill(max(0.1, deadline - time.monotonic()))
        self.redis.stop()
        self.kafka.stop()

    def kill(self) -> None:
        """Kill everything, for a stack whose data is no longer needed."""
        self._release()
        for component in reversed(self.components):
            component.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _clients(self) -> list[Component]:
        """Components that are stopped while brokers and Redis still run."""
        return [*self.services.values(), *(self.monitoring.components if self.monitoring is not None else [])]

    def _launch(self, components: Collection[Component]) -> None:
        """Start components, unless another thread has stopped the stack: then nothing is left running."""
        with self._lock:
            if not self._stopping.is_set():
                for component in components:
                    component.start()
                return
        self.kill()
        raise StackNotReadyError("the stack was stopped while it started")

    def _release(self) -> None:
        with self._lock:  # no restart is under way, and none will begin
            self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()  # each of its probes is bounded
        for component in self.components:
            component.release()

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_S):
            self.poll()
            if self._on_state is not None:
                self._attempt("the stack's state", partial(self._on_state, self))

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run an action that the machine may refuse. A refusal is logged once; the next round tries again."""
        try:
            action()
            self._refused.pop(what, None)
        except (OSError, subprocess.SubprocessError) as error:
            if self._refused.get(what) != str(error):
                log.warning("%s: %s; it is tried again", what, error)
            self._refused[what] = str(error)
