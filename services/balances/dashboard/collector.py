"""One collector for all clients: it asks every source, and publishes what it derives twice a second.

Invariant: it works only while a client is connected; its memory outlasts a pause. Each source is asked in a task of its
own, so that a silent one delays no other. A service's change of state is published at once, not with the next round.
The number of clients is bounded, and for each at most one message waits: a slow client gets the newest message next,
never those that it missed.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from services.balances.api.reader import DatabaseUnavailableError, Reader, ReaderBusyError, read_dated
from services.balances.dashboard import probes
from services.balances.dashboard.derive import Memory, derive
from services.balances.dashboard.observed import MONITOR, Instance, Seen, ViewLook, Watched
from services.balances.dashboard.probes import Monitor
from services.balances.dashboard.snapshot import Snapshot
from services.balances.dashboard.tables import Looking
from services.balances.projection.progress import Progress
from shared.http.monitor import ClusterState, Run
from shared.telemetry.server import Health


class TooManyClientsError(Exception):
    """No place is free."""


class Client:
    """A connected client; `Hub.client` makes it."""

    def __init__(self, newest: bytes | None) -> None:
        self._message = newest
        self._changed = asyncio.Event()
        self.closed = False
        if newest is not None:
            self._changed.set()

    def offer(self, message: bytes) -> None:
        """Replace the message that was not taken yet."""
        self._message = message
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def next(self, timeout_s: float) -> bytes | None:
        """The newest message that it did not have yet; None after `timeout_s` seconds without one, or when closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return None
        message, self._message = self._message, None
        if not self.closed:
            self._changed.clear()
        return None if self.closed else message


class Hub:
    """At most `clients_max` clients.

    Args:
        on_watched: gets True when the first has come, and False when the last has gone. A client that was closed does
            not count, though it keeps its place until its connection has ended.
    """

    def __init__(self, clients_max: int, on_watched: Callable[[bool], None]) -> None:
        self._clients_max: Final = clients_max
        self._on_watched: Final = on_watched
        self._clients: set[Client] = set()
        self._newest: bytes | None = None

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def watched(self) -> bool:
        return not all(client.closed for client in self._clients)

    def publish(self, message: bytes) -> None:
        """Pass it to all, and keep it for the next client."""
        self._newest = message
        for client in self._clients:
            client.offer(message)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Register a client for the context; TooManyClientsError if no place is free."""
        if len(self._clients) >= self._clients_max:
            raise TooManyClientsError(f"{self._clients_max} clients watch already")
        client = Client(self._newest)
        was_watched = self.watched
        self._clients.add(client)
        try:
            if not was_watched:
                self._on_watched(True)
            yield client
        finally:
            self._clients.discard(client)
            if not client.closed:
                self._leave()

    def close(self) -> None:
        """Close all clients."""
        if self.watched:
            for client in self._clients:
                client.close()
            self._leave()

    def _leave(self) -> None:
        if not self.watched:
            self._newest = None  # the next client must not see an old state
            self._on_watched(False)


ROUND_S: Final = 0.5
FRESHNESS_S: Final = 1.0  # after it, the view is shown without its age
VIEW_ANSWER_S: Final = 1.5  # with ROUND_S less than REST_S: no older look is judged as that of a quiescent system
FIRST_S: Final = 1.5  # the first round waits for all first answers: a page that opens shows no unknown state


class Collector:
    """Collects, derives and passes each snapshot to `publish`."""

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        monitor: Monitor,
        partitions: int,
        reader: Reader,
        progress: Progress,
        health: Health,
        publish: Callable[[Snapshot], None],
    ) -> None:
        self._watched = tuple(one for one in watched if one.service != MONITOR)
        self._monitor = monitor
        self._partitions = partitions
        self._reader = reader
        self._progress = progress
        self._health = health
        self._publish = publish
        self._looking = Looking()
        self._memory = Memory()
        self._instances: dict[Watched, Instance] = {}
        self._view: ViewLook | None = None
        self._view_failure = ""
        self._cluster: ClusterState | None = None
        self._cluster_failure = ""
        self._run: Run | None = None
        self._runs_known = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        self._forget()
        async with probes.session() as client, asyncio.TaskGroup() as tasks:
            for watched in self._watched:
                tasks.create_task(probes.watch(client, watched, self._take_instance))
            tasks.create_task(self._monitor.watch(client, self._take_cluster))
            tasks.create_task(self._watch_view())
            tasks.create_task(self._rounds())

    def _forget(self) -> None:
        """The state before a pause is not the present one."""
        self._instances.clear()
        self._view, self._view_failure = None, ""
        self._cluster, self._cluster_failure = None, ""

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while not self._complete and loop.time() < begun_s + FIRST_S:
            await self._wait(begun_s + FIRST_S - loop.time())
        while True:
            due_s = loop.time() + ROUND_S
            self._round()
            await self._wait(due_s - loop.time())

    @property
    def _complete(self) -> bool:
        """Whether every source has answered, or failed to."""
        answered = len(self._instances) == len(self._watched)
        return answered and all((self._view or self._view_failure, self._cluster or self._cluster_failure))

    async def _wait(self, timeout_s: float) -> None:
        """Wait for a change that must be published at once, or for the timeout."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _round(self) -> None:
        self._memory, snapshot = derive(
            self._memory,
            Seen(
                at_s=time.monotonic(),
                at_ms=time.time_ns() // 1_000_000,
                partitions=self._partitions,
                instances=tuple(self._instances.values()),
                own=self._health.reasons,
                view=self._view,
                view_failure=self._view_failure,
                cluster=self._cluster,
                cluster_failure=self._cluster_failure,
                run=self._run,
                runs_known=self._runs_known,
            ),
        )
        self._publish(snapshot)

    def _take_instance(self, instance: Instance) -> None:
        before = self._instances.get(instance.watched)
        self._instances[instance.watched] = instance
        if before is None or before.answer is not instance.answer:
            self._changed.set()

    def _take_cluster(self, state: ClusterState | None, failure: str) -> None:
        if self._cluster_failure != failure or (self._cluster is None and state is not None):
            self._changed.set()
        self._cluster, self._cluster_failure = state, failure
        if state is not None:
            self._run, self._runs_known = state.run, True

    async def _watch_view(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + ROUND_S
            late = loop.call_later(VIEW_ANSWER_S, self._take_view, None, f"no answer within {VIEW_ANSWER_S:g} s")
            try:
                view, failure = await self._look(), ""
            except (DatabaseUnavailableError, ReaderBusyError) as error:
                view, failure = None, str(error) or "too much is asked of it"
            finally:
                late.cancel()
            self._take_view(view, failure)
            await asyncio.sleep(max(due_s - loop.time(), 0.0))

    def _take_view(self, view: ViewLook | None, failure: str) -> None:
        if self._view_failure != failure or (self._view is None and view is not None):
            self._changed.set()
        self._view, self._view_failure = view, failure

    async def _look(self) -> ViewLook:
        found, positions = await read_dated(
            self._reader, self._progress, self._looking.look, range(self._partitions), FRESHNESS_S
        )
        return ViewLook(positions, found.events, found.balances)
