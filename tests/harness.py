"""Services as real processes for integration tests: started, killed, stopped and resumed by pid."""

import asyncio
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from deploy.local.process import ManagedProcess
from shared.events.catalogue import REPLICATION_FACTOR
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.cluster import Target
from shared.kafka.client.reader import end_offsets, stable_offsets
from tests.partitions import PARTITIONS
from tests.preforked import PreforkedProcess

ROOT = Path(__file__).parents[1]
SESSION_TIMEOUT_MS = 6000


def wait_until(reached: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it did not come true within `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)


async def eventually(reached: Callable[[], Awaitable[bool]], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition that must itself be awaited.

    Raises:
        AssertionError: it did not come true within `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while not await reached():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(0.02)


async def settled(bootstrap_servers: str, topics: Collection[str]) -> bool:
    """Whether no transaction is open in these topics. Markers are written after EndTxn was answered: wait for it."""
    return await stable_offsets(bootstrap_servers, topics) == await end_offsets(bootstrap_servers, topics)


async def settled_at(bootstrap_servers: str, target: Target) -> bool:
    """Whether no transaction is open in one partition."""
    topics = [target[0]]
    stable, ends = await stable_offsets(bootstrap_servers, topics), await end_offsets(bootstrap_servers, topics)
    return stable[target] == ends[target]


@contextmanager
def cluster(
    directory: Path, brokers: int = 1, *, heap_mb: int = 256, partitions: int = PARTITIONS
) -> Iterator[LocalKafka]:
    """A cluster with the catalogue's topics; killed at the end.

    Args:
        directory: for its data.
        brokers: three where replication or a broker's failure is the subject: each is a JVM that takes processor time
            even at rest.
        heap_mb: of each broker, MiB.
        partitions: of each topic.
    """
    kafka = LocalKafka(directory, brokers, heap_mb=heap_mb)
    kafka.start()
    try:
        kafka.wait_ready(120)
        asyncio.run(ensure_topics(kafka.bootstrap_servers, partitions, min(brokers, REPLICATION_FACTOR), deadline_s=60))
        yield kafka
    finally:
        kafka.kill()


def is_ready(port: int) -> bool:
    """Whether the service whose metrics are on this port answers, and is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


class Service:
    """One instance of a service.

    Args:
        name: of the service.
        bootstrap_servers: the test's brokers.
        directory: for its log.
        instance: unique per service.
        settings: further variables, ONCE_ prefix left out.
    """

    def __init__(
        self, name: str, bootstrap_servers: str, directory: Path, instance: str = "0", **settings: str
    ) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        environment = {
            "ONCE_BOOTSTRAP_SERVERS": bootstrap_servers,
            "ONCE_INSTANCE": instance,
            "ONCE_METRICS_PORT": str(self.port),
            **{f"ONCE_{key}": value for key, value in settings.items()},
        }
        self.process: ManagedProcess = PreforkedProcess(
            f"{name}-{instance}",
            [sys.executable, "-m", f"services.{name}"],
            environment,
            directory / f"{name}-{instance}-{self.port}.log",
            cwd=ROOT,
        )

    def start(self) -> "Service":
        """Start it without waiting."""
        self.process.start()
        return self

    @property
    def ready(self) -> bool:
        """Whether it has taken over its partitions. A dead service fails the test with its log."""
        self._assert_running()
        return is_ready(self.port)

    def not_ready_reasons(self) -> dict[str, str]:
        """Reasons of /readyz; empty while it is ready, `process` while it does not answer."""
        self._assert_running()
        try:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    return {}
            except urllib.error.HTTPError as answer:
                reasons: dict[str, str] = json.loads(answer.read())["reasons"]
                return reasons
        except OSError as error:  # refused, timed out or dropped
            return {"process": str(error)}

    def _assert_running(self) -> None:
        assert self.process.running, f"{self.name} ended with {self.process.returncode}:\n{self.process.log_tail()}"

    def wait_ready(self, deadline_s: float = 60.0) -> "Service":
        """Wait until it is ready."""
        wait_until(lambda: self.ready, f"{self.name} ready", deadline_s)
        return self

    def wait_exit(self, deadline_s: float = 60.0) -> int:
        """Wait until it has ended, and return its exit code (negative: a signal)."""
        return self.process.wait(deadline_s)

    @property
    def suspended(self) -> bool:
        """Whether it has been sent SIGSTOP."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def metrics_text(self) -> str:
        """The answer of /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def metric(self, name: str) -> float:
        """The sum over a metric's series."""
        lines = self.metrics_text().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def log(self) -> list[dict[str, object]]:
        """Its log records."""
        text = self.process.log_path.read_text() if self.process.log_path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def logged(self, event: str) -> bool:
        """Whether it logged this event."""
        return any(line["event"] == event for line in self.log())

    def rss_mb(self) -> float:
        """Its resident memory now, in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000


@contextmanager
def services(bootstrap_servers: str, directory: Path, *names: str, **settings: str) -> Iterator[dict[str, Service]]:
    """Several services, ready; stopped at the end. `settings` are of all of them, ONCE_ prefix left out."""
    running = {name: Service(name, bootstrap_servers, directory, **settings).start() for name in names}
    try:
        for service in running.values():
            service.wait_ready()
        yield running
    finally:
        for service in running.values():
            service.process.terminate()
