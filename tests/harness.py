"""Services as real processes for integration tests: started, killed, stopped and resumed by pid."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from deploy.drills.service import Service as OwnService
from deploy.drills.waiting import eventually, settled, settled_at
from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import REPLICATION_FACTOR
from shared.kafka.admin.topics import ensure_topics
from tests.keys import key_file
from tests.partitions import PARTITIONS
from tests.preforked import PreforkedProcess

__all__ = [
    "ROOT",
    "SESSION_TIMEOUT_MS",
    "Service",
    "cluster",
    "eventually",
    "services",
    "settled",
    "settled_at",
    "wait_until",
]

ROOT = Path(__file__).parents[1]
SESSION_TIMEOUT_MS = 6000


def wait_until(reached: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true within `deadline_s` seconds.
    """
    end_s = time.monotonic() + deadline_s
    while not reached():
        if time.monotonic() >= end_s:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, those of all its threads; see proc(5)."""
    found: list[int] = []
    for of_thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended just now
            found += map(int, of_thread.read_text().split())
    return found


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


class Service(OwnService):
    """One instance of a service, forked from a process that has imported it; see `OwnService`."""

    process_type = PreforkedProcess

    def __init__(
        self, name: str, bootstrap_servers: str, directory: Path, instance: str = "0", **settings: str
    ) -> None:
        if name == "gateway":
            settings = {"GATEWAY_API_KEYS_FILE": key_file(directory), **settings}
        super().__init__(name, bootstrap_servers, directory, instance, **settings)

    def wait_ready(self, deadline_s: float = 60.0) -> Self:
        """Wait until it is ready."""
        wait_until(lambda: self.ready, f"{self.name} ready", deadline_s)
        return self

    def wait_exit(self, deadline_s: float = 60.0) -> int:
        """Wait until it has ended, and return its exit code (negative: a signal)."""
        return self.process.wait(deadline_s)

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
