"""One program under a supervisor: it is started again whenever it ends."""

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from deploy.local.process import ManagedProcess, Signalled
from tests.harness import ROOT

RESTART_S: Final = 0.3
STOP_S: Final = 8.0
_PROGRAMS: Final = "deploy.drills.clients"


class Program(NamedTuple):
    """A program of the comparison.

    Attributes:
        transaction_version: of the cluster that it works on.
        module: of a Python program; None for the Java client.
    """

    name: str
    transaction_version: int
    module: str | None

    def transactional_id(self, group: str) -> str:
        """Return the transactional.id under which it works."""
        return f"{group}-0"

    def argv(self, java_classpath: str) -> list[str]:
        """Return its command line."""
        if self.module is not None:
            return [sys.executable, "-m", f"{_PROGRAMS}.{self.module}"]
        return ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp", java_classpath, "PlainHop"]


CONTROL: Final = "aiokafka"
PROGRAMS: Final = (
    Program(CONTROL, 2, "stock_hop"),
    Program("once v1", 1, "hop"),
    Program("once v2", 2, "hop"),
    Program("Java", 2, None),
)


class Hop(Signalled):
    """A supervised process; it runs while the context is entered, and is started again whenever it ends.

    Attributes:
        ends: exit codes of the times that it ended by itself.
    """

    def __init__(self, argv: list[str], variables: Mapping[str, str], log: Path) -> None:
        self.process = ManagedProcess(log.stem, argv, variables, log, cwd=ROOT)
        self._watching: asyncio.Task[None] | None = None
        self.ends: list[int | None] = []

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self.process.start()
        self._watching = asyncio.create_task(self._watch())

    async def restart(self) -> None:
        """Stop it and start it again."""
        await self.stop()
        self.start()

    async def stop(self) -> None:
        """Stop it by SIGTERM; after 8 s by SIGKILL."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            if not self.process.running:
                self.ends.append(self.process.returncode)
            self._watching = None
        await asyncio.to_thread(self.process.terminate, STOP_S)

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.process.log_tail()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RESTART_S)
            if not self.process.running:
                self.ends.append(self.process.returncode)
                self.process.start()
