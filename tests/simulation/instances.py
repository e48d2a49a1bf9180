"""Processes of services in a history, as their supervisor has them: started, killed, and started again."""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final
from unittest import mock

import services.ingest.__main__ as ingest
import services.ledger.__main__ as ledger
import services.transform.__main__ as transform
from shared.events.installation import Ownership
from shared.kafka.runtime.runtime import Runtime
from shared.settings import IngestSettings, LedgerSettings, RuntimeSettings, load
from shared.telemetry.server import Health
from tests.installation import INSTALLATION
from tests.simulation.cluster import Cluster
from tests.simulation.loop import PROCESS, Process, VirtualLoop, outside

_MODULES: Final[dict[str, tuple[ModuleType, type[RuntimeSettings]]]] = {
    "ingest": (ingest, IngestSettings),
    "transform": (transform, RuntimeSettings),
    "ledger": (ledger, LedgerSettings),
}


RESTART_S: Final = 1.0
"""From the end of a process to its next start."""


_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
"""Of an object in memory, which differs from run to run."""


class Logged(logging.Handler):
    """Notes what processes log."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.INFO)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        who = "-" if process is None else process.name
        reason = getattr(record, "reason", "")
        text = f"{record.getMessage()}{f': {reason}' if reason else ''}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._cluster.note(who, f"{record.levelname}: {_ADDRESS.sub('', text)}", state=False)


@dataclass(slots=True)
class Instance:
    """One instance of a service under its ONCE_INSTANCE, and the process that runs it.

    Attributes:
        name: of the process in the history.
        number: its ONCE_INSTANCE.
        process: None while it does not run.
    """

    loop: VirtualLoop
    service: str
    number: int
    name: str
    servers: str
    partitions: int
    process: Process | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: bool = True

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.process is not None or not self.wanted:
            return
        self.stop = asyncio.Event()
        self.process = Process(self.loop, self.name)
        task = self.process.start(self._work(self.stop))
        process = self.process
        # The history's own: the process may be gone by then
        task.add_done_callback(lambda done: self._ended(process, done), context=outside())

    async def _work(self, stop: asyncio.Event) -> int:
        module, settings_class = _MODULES[self.service]
        environment = {
            "ONCE_BOOTSTRAP_SERVERS": self.servers,
            "ONCE_INSTANCE": str(self.number),
            "ONCE_PARTITIONS": str(self.partitions),
        }
        settings = load(settings_class, environment)
        async with AsyncExitStack() as stack:
            # Not read from the cluster: requests before the first one would give every seed another history
            given = mock.AsyncMock(return_value=INSTALLATION)
            enforced = mock.AsyncMock(return_value=Ownership((0,) * self.partitions, 0))
            with mock.patch.multiple(ledger, check_topics=given, installation_id=given, ownership=enforced):
                workload = await module.build(settings, stack)
            return await Runtime(workload, settings, module.TOPICS, Health()).run(stop)

    def _ended(self, process: Process, done: "asyncio.Task[int]") -> None:
        if self.process is not process or done.cancelled():
            return  # it was killed, or the history is over
        if (error := done.exception()) is not None:
            logging.getLogger(__name__).error("%s ended: %r", self.name, error)
        self.process = None
        process.kill()  # a process that ends takes all its tasks along
        self.loop.call_later(RESTART_S, self.start)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            process, self.process = self.process, None
            process.kill()

    def kill_after(self, calls: int, then: Callable[[], object]) -> None:
        """SIGKILL when the process has run so many more calls of the loop, and call `then`."""
        if self.process is None:
            then()
            return
        process = self.process

        def killed() -> None:
            if self.process is process:
                self.process = None
            then()

        process.kill_after(calls, killed)

    def leave(self) -> None:
        """SIGTERM; it is not started again."""
        self.wanted = False
        self.stop.set()
