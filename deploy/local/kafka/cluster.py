"""A real Kafka cluster on this machine: KRaft brokers as child processes, each to be killed, paused or restarted alone.

Invariant: ports and data stay the same over restarts of a broker. Readiness is asked of each broker, never guessed from
time.
"""

import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy import PROJECT_ROOT
from deploy.local import jars
from deploy.local.kafka.broker_config import BrokerAddress, log4j2_xml, server_properties
from deploy.local.kafka.probe import BrokerNotAnsweringError, ClusterView, ask
from deploy.local.ports import LOCAL_HOSTS, LOOPBACK, free_ports
from deploy.local.prerequisites import require_java
from deploy.local.process import ManagedProcess
from deploy.security.certificates import Authority, open_authority
from deploy.security.files import kafka_uuid, make_once, replace
from deploy.security.principals import CLIENTS, broker
from shared.kafka.client.access import Access
from shared.settings import SettingsError

_POLL_S = 0.1
_FORMAT_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 20.0  # past this a stopping broker is killed
_CONFIG = "config"
_META = "meta.properties"
_BOOTSTRAP = "bootstrap.checkpoint"
_CLOSED_MARK = ".kafka_cleanshutdown"  # written when all logs are closed; a start removes it
_JMX_CONFIG_PATH = PROJECT_ROOT / "deploy" / "prometheus" / "jmx.yml"
# A stack lives for minutes on few cores: the optimising compiler took more than half a core of three brokers
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
# Parallel collectors of several JVMs would only fight each other for the cores
_COLLECTOR = "-XX:+UseSerialGC"


def _environment(classpath: str) -> dict[str, str]:
    """The variables of a JVM, which reads and writes the names of files by its locale."""
    return {"CLASSPATH": classpath, "LC_ALL": "C.UTF-8"}


class KafkaNotReadyError(RuntimeError):
    """The cluster did not reach a state in time; the message names what is missing and shows the log's end."""


def brokers_of(directory: Path) -> int:
    """Count the brokers that a cluster's directory was made for; 0 for a new one.

    By their configuration: a broker may have lost its data, and gets new storage at the next start.
    """
    return len(list((directory / _CONFIG).glob("broker-*.properties")))


class LocalKafka:
    """A cluster of combined brokers and controllers on free loopback ports.

    Args:
        directory: for data, configuration and logs. A cluster started again on the same directory has its data.
        brokers: how many; node ids run from 0.
        heap_mb: the heap of each JVM, in MiB.
        log_directory: for broker-N.log; `logs` in `directory` when None.
        metrics: whether each broker serves its figures to Prometheus, on `metrics_ports`.
        credentials: folder of an authority and the brokers' identities, made at the start where they are missing; with
            it, clients and brokers speak mutual TLS, and only the operator may do anything until rules allow more.
        archive_at_exit: a class data archive that the brokers write; None to use the one that was made.
        optimise: whether the brokers' JVMs use the optimising compiler as well, as Kafka's own scripts let them.
        overrides: brokers' settings, by Kafka's names, in place of those of `server_properties`.

    Attributes:
        processes: the brokers by node id, to be killed, paused or started again one by one.

    Raises:
        PrerequisiteError: no Java 17 or newer.
        NoFreePortError: no ports.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        *,
        heap_mb: int = 512,
        log_directory: Path | None = None,
        metrics: bool = False,
        credentials: Path | None = None,
        archive_at_exit: Path | None = None,
        optimise: bool = False,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.log_directory = self.directory / "logs" if log_directory is None else log_directory.resolve()
        self._java = require_java()
        self._heap_mb = heap_mb
        self._archive_at_exit = archive_at_exit
        self._overrides = dict(overrides or {})
        self._jvm_options = [_COLLECTOR] if optimise else [_QUICK_COMPILER, _COLLECTOR]
        self.authority = None if credentials is None else Authority(credentials.resolve())
        ports = free_ports(2 * brokers)
        self.nodes = [BrokerAddress(i, ports[2 * i], ports[2 * i + 1]) for i in range(brokers)]
        self._node_ids = frozenset(range(brokers))
        self.metrics_ports = free_ports(brokers if metrics else 0)
        logs = self.log_directory
        self.processes = [ManagedProcess(f"broker-{i}", [], {}, logs / f"broker-{i}.log") for i in range(brokers)]

    @property
    def bootstrap_servers(self) -> str:
        """All brokers as `host:port,...`, whether they run or not."""
        return ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    @property
    def access(self) -> Access:
        """All brokers, and the operator's credentials."""
        return Access(self.bootstrap_servers, None if self.authority is None else self.authority.tls())

    @property
    def pids(self) -> list[int]:
        return [pid for process in self.processes if (pid := process.pid) is not None]

    def start(self) -> None:
        """Write the configuration, format new storage and start every broker; returns before they are ready.

        Raises:
            CredentialsError: the authority's key is missing.
            JarError: the brokers' jars, or their agent's, cannot be downloaded.
            KafkaNotReadyError: the storage could not be formatted, or is of another number of brokers.
        """
        there = brokers_of(self.directory)
        if there not in {0, len(self.nodes)}:
            raise KafkaNotReadyError(
                f"{self.directory} is of a cluster of {there}: start as many brokers, or delete it"
            )
        classpath = jars.classpath()
        archive = jars.archive_path(self._java, classpath)
        if self.authority is not None:
            self._issue_identities(self.authority.directory)
        self._write_configuration()
        self._format(classpath, archive)
        self._write_commands(classpath, archive)
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        """Stop every broker, all at once, and wait until their data is closed.

        A broker marks its data as closed and then waits up to 5 s for the quorum to elect without it, which cannot
        happen when all stop: once marked, it is killed. So is one that is not that far after a deadline.
        """
        for process in self.processes:
            process.request_stop()
        deadline = time.monotonic() + _STOP_DEADLINE_S
        while not all(self._closed(node.node_id) for node in self.nodes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kill every broker, for a cluster whose data is no longer needed."""
        for process in self.processes:
            process.kill()

    def pause(self) -> None:
        for process in self.processes:
            process.pause()

    def resume(self) -> None:
        for process in self.processes:
            process.resume()

    def wait_ready(self, deadline_s: float = 120.0) -> None:
        """Wait until each broker answers, and each sees all brokers registered and unfenced.

        Raises:
            KafkaNotReadyError: not so after `deadline_s` seconds, or a broker has ended.
        """
        self._wait(lambda view: view.brokers == self._node_ids and view.controller >= 0, "ready", deadline_s)

    def wait_in_sync(self, deadline_s: float = 120.0) -> None:
        """Wait until every partition has a leader and all its replicas in sync as well; raises as `wait_ready`."""
        self._wait(lambda view: view.brokers == self._node_ids and view.in_sync, "in sync", deadline_s)

    def view(self, node_id: int, timeout_s: float = 1.0) -> ClusterView:
        """Return one broker's current view of the cluster.

        Raises:
            BrokerNotAnsweringError: a step of its answer takes longer than `timeout_s` seconds, or the operator's files
                cannot be used.
        """
        tls = self.access.tls
        try:
            context = None if tls is None else tls.context()
        except SettingsError as error:
            raise BrokerNotAnsweringError(str(error)) from error
        return ask(self.nodes[node_id].port, timeout_s, context)

    def answers(self, node_id: int, timeout_s: float = 1.0) -> bool:
        """Whether a broker answers, and sees itself registered and unfenced."""
        return self._sees(node_id, lambda view: node_id in view.brokers, timeout_s)

    def _sees(self, node_id: int, reached: Callable[[ClusterView], bool], timeout_s: float = 1.0) -> bool:
        try:
            return reached(self.view(node_id, timeout_s))
        except BrokerNotAnsweringError:
            return False

    def _wait(self, reached: Callable[[ClusterView], bool], state: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while True:
            # All in one round: a broker's earlier answer may be from before a fault.
            missing = [node.node_id for node in self.nodes if not self._sees(node.node_id, reached)]
            if not missing:
                return
            ended = [node_id for node_id in missing if not self.processes[node_id].running]
            if ended or time.monotonic() > deadline:
                first = (ended or missing)[0]
                what = "has ended" if ended else f"is not {state} after {deadline_s} s"
                tail = self.processes[first].log_tail()
                raise KafkaNotReadyError(f"broker {first} {what}; the end of its log:\n{tail}")
            time.sleep(_POLL_S)

    def _closed(self, node_id: int) -> bool:
        mark = self._data_path(node_id) / _CLOSED_MARK
        return mark.exists() or not self.processes[node_id].running

    def _write_commands(self, classpath: str, archive: Path) -> None:
        made = self._archive_at_exit
        for node, process in zip(self.nodes, self.processes, strict=True):
            process.env = _environment(classpath)
            process.argv = [
                self._java,
                *(jars.archive_options(archive) if made is None else jars.archive_options(made, make=True)),
                f"-Xms{self._heap_mb}m",
                f"-Xmx{self._heap_mb}m",
                *self._jvm_options,
                f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}",
                "-Dlog4j2.disableJmx=true",
                "-Djava.awt.headless=true",
                "kafka.Kafka",
                str(self._properties_path(node.node_id)),
            ]
        if self.metrics_ports:
            agent = jars.jmx_agent()
            for process, port in zip(self.processes, self.metrics_ports, strict=True):
                process.argv.insert(1, f"-javaagent:{agent}={LOOPBACK}:{port}:{_JMX_CONFIG_PATH}")

    def _properties_path(self, node_id: int) -> Path:
        return self.directory / _CONFIG / f"broker-{node_id}.properties"

    def _data_path(self, node_id: int) -> Path:
        return self.directory / f"broker-{node_id}"

    def _issue_identities(self, directory: Path) -> None:
        """Issue the identities that are missing or about to expire, of an authority that is made when there is none."""
        authority = open_authority(directory)
        for name in CLIENTS:
            authority.ensure(name)
        for node in self.nodes:
            authority.ensure(broker(node.node_id), LOCAL_HOSTS)

    def _write_configuration(self) -> None:
        (self.directory / _CONFIG).mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.xml").write_text(log4j2_xml())
        for node in self.nodes:
            text = server_properties(node.node_id, self.nodes, self._data_path(node.node_id), self.authority)
            text += "".join(f"{name}={value}\n" for name, value in self._overrides.items())  # the last line counts
            self._properties_path(node.node_id).write_text(text)

    def _format(self, classpath: str, archive: Path) -> None:
        """Format the storage of each broker that has none, under one cluster id.

        One by Kafka's tool, a JVM of its own; what it writes differs from node to node in two ids only, so the others
        get a copy with theirs.
        """
        new = [node.node_id for node in self.nodes if not (self._data_path(node.node_id) / _META).exists()]
        if not new:
            return
        first, *others = new
        argv = [self._java, *jars.archive_options(archive), *self._jvm_options, "kafka.tools.StorageTool", "format"]
        # One word: an id may begin with a dash
        argv += [f"--cluster-id={self._cluster_id()}", "--config", str(self._properties_path(first))]
        log = self.log_directory / f"format-{first}.log"
        formatter = ManagedProcess(f"format-{first}", argv, _environment(classpath), log)
        formatter.start()
        if formatter.wait(_FORMAT_DEADLINE_S) != 0:
            raise KafkaNotReadyError(f"{formatter.name} failed:\n{formatter.log_tail()}")
        for node_id in others:
            path = self._data_path(node_id)
            path.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._data_path(first) / _BOOTSTRAP, path / _BOOTSTRAP)
            text = (self._data_path(first) / _META).read_text()
            text = re.sub("(?m)^node.id=.*$", f"node.id={node_id}", text)
            text = re.sub("(?m)^directory.id=.*$", f"directory.id={kafka_uuid()}", text)
            replace(path / _META, text.encode())  # the last: with it, the storage counts as formatted

    def _cluster_id(self) -> str:
        path = self.directory / "cluster.id"
        make_once(path, kafka_uuid)
        return path.read_text()
