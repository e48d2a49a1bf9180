"""Drills within a container of the operator, on the deployment around it: `python -m deploy.drills.inside`.

    python -m deploy.drills.inside SEED MODULE:ROW...

Faults are asked for on stdout and answered on stdin by deploy/drills/compose.py, which has Docker at hand.
Invariant: each line on stdout is one `Line`, and each on stdin one `Answer`; steps go to stderr.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from deploy.compose.credentials import BROKERS
from deploy.drills import catalogue
from deploy.drills.drill import COMPOSE, Drill, Result
from deploy.drills.run import run_on
from deploy.drills.target import Target
from deploy.local.kafka.probe import BrokerNotAnsweringError, ClusterView, ask
from deploy.local.supervisor.stack import StackNotReadyError
from shared import settings
from shared.kafka.client.access import Access, tls_of
from shared.kafka.runtime.process import stop_on_signals

EFFECTS: Final = Path("/var/lib/once/effects")
SERVICES: Final = ("gateway", "ingest", "transform", "ledger", "outbox", "redis", "balances")
"""Of `docker compose up`, without the brokers and the monitor, which takes no part in a payment."""
_HEALTHY_S: Final = 240.0
"""A container's health is looked at every 15 s."""
_POLL_S: Final = 0.2
_INTERRUPTED: Final = 130


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a fault, with the names of components, or a result."""

    do: str = ""
    names: list[str] = []
    result: Result | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a fault says of itself; an error if it could not be made."""

    said: str = ""
    error: str = ""


class Link:
    """The pipes to the host.

    Args:
        answers, lines: stdin and stdout.
    """

    def __init__(self, answers: BinaryIO, lines: BinaryIO) -> None:
        self._answers = answers
        self._lines = lines
        self._asking = threading.Lock()
        self._writing = threading.Lock()

    def ask(self, do: str, *names: str) -> str:
        """Ask for a fault, and return what it says.

        Raises:
            StackNotReadyError: it could not be made; the message says why.
        """
        with self._asking:
            self.write(Line(do, list(names)))
            answer = msgspec.json.decode(self._answers.readline(), type=Answer)
        if answer.error:
            raise StackNotReadyError(answer.error)
        return answer.said

    def write(self, line: Line) -> None:
        """Write a line."""
        with self._writing:
            self._lines.write(msgspec.json.encode(line) + b"\n")
            self._lines.flush()


class ComposeTarget(Target):
    """The deployment of docker-compose.yml, seen from a container of the operator.

    Args:
        link: to the host, which has Docker.
        access: of the operator.
        directory: for the drills' files.
    """

    name = COMPOSE

    def __init__(self, link: Link, access: Access, directory: Path) -> None:
        super().__init__()
        self.access = access
        self.brokers = BROKERS
        self.directory = directory
        self.effects_directory = EFFECTS
        self.healthy_s = _HEALTHY_S
        self.link = link
        self._context = None if access.tls is None else access.tls.context()

    def kill(self, name: str) -> str:
        """Kill a container's processes; its restart policy brings it back."""
        return self.link.ask("kill", name)

    def take_away(self, name: str) -> str:
        """Kill a container by SIGKILL, and leave it down."""
        return self._take("take_away", name)

    def stop(self, name: str) -> str:
        """Stop a container by SIGTERM, wait until it has ended, and leave it down."""
        return self._take("stop", name)

    def pause(self, name: str) -> str:
        """Freeze a container's processes."""
        return self._take("pause", name)

    def bring_back(self, name: str) -> None:
        """Start or thaw a container."""
        self.link.ask("bring_back", name)
        self.taken.discard(name)

    def is_ready(self, name: str) -> bool:
        """Whether a container is healthy and, after a kill, restarted."""
        return bool(self.link.ask("is_ready", name))

    async def settle(self) -> None:
        """Wait until every container is healthy, and every replica in sync; raises as `heal`."""
        there = [name for name in (*self.brokers, *SERVICES) if name not in self.taken]
        await asyncio.to_thread(self.link.ask, "wait_ready", *there)
        deadline_s = time.monotonic() + self.healthy_s
        while not await asyncio.to_thread(self._in_sync, len(there) - len(SERVICES)):
            if time.monotonic() > deadline_s:
                raise StackNotReadyError(f"not every replica is in sync after {self.healthy_s:.0f} s")
            await asyncio.sleep(_POLL_S)

    def views(self) -> Iterator[ClusterView]:
        """Yield the cluster as each broker that answers sees it."""
        for address in self.access.bootstrap_servers.split(","):
            host, _, port = address.rpartition(":")
            if host not in self.taken:
                with suppress(BrokerNotAnsweringError):
                    yield ask(int(port), context=self._context, host=host)

    def _take(self, do: str, name: str) -> str:
        self.taken.add(name)
        return self.link.ask(do, name)

    def _in_sync(self, brokers: int) -> bool:
        view = next(self.views(), None)
        return view is not None and len(view.brokers) == brokers and view.in_sync


def module_of(drill: Drill) -> str:
    """Return the module of the catalogue that a drill is in."""
    return drill.steps.__module__.rpartition(".")[2]


def chosen(names: Sequence[str]) -> list[Drill]:
    """Return drills by `MODULE:ROW`. No other module is imported: some need Spark, which this image does not have."""
    found = []
    for name in names:
        module, _, row = name.partition(":")
        values = vars(import_module(f"{catalogue.__name__}.{module}")).values()
        found += [one for one in values if isinstance(one, Drill) and one.row == row]
    return found


async def run(link: Link, seed: int, drills: Sequence[Drill], target: Target) -> bool:
    """Run drills until they are done or a signal comes; whether they were done."""
    stop = stop_on_signals()
    running = asyncio.create_task(
        run_on(target, drills, seed=seed, say=_say, done=lambda result: link.write(Line(result=result)))
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if running.done():
        await running
        return True
    running.cancel()
    await asyncio.wait({running})
    await target.heal()
    return False


def _say(text: str) -> None:
    print(f"drill: {text}", file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    """Run the drills that the command line names, and return the exit code."""
    link = Link(sys.stdin.buffer, sys.stdout.buffer)
    access = Access(settings.bootstrap_servers() or "", tls_of(*settings.tls_files()))
    with tempfile.TemporaryDirectory(prefix="once-drill-") as name:
        target = ComposeTarget(link, access, Path(name))
        return 0 if asyncio.run(run(link, int(words[0]), chosen(words[1:]), target)) else _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
