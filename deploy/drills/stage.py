"""What a drill's steps work with: a target, a proxy, topics of their own, and the journal of what they do and see.

@drill("A2", "lost-acknowledgement", "A batch whose acknowledgement is lost is stored once")
async def lost_acknowledgement(stage: Stage) -> None:
    topic, proxy = await stage.topic(), await stage.proxy()
    rule = Rule(api="Produce", action=Drop(Part.ANSWER))
    async with stage.fault(OnRequests(proxy, rule, "answer to Produce lost")) as lost:
        ...
        stage.evidence(lost.name, await lost.acted())
    stage.expect("copies of the record", copies, 1)
"""

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from deploy.drills.admin import create_topic
from deploy.drills.drill import Anomaly, Evidence, Found, Journal, Moment, Observation
from deploy.drills.faults.fault import Fault, NoEvidenceError
from deploy.drills.observe import observing
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.target import Target, node_id
from shared.kafka.client.access import Access

WHERE_MAX = 20

F = TypeVar("F", bound=Fault)


class Stage:
    """The stage of one drill.

    Args:
        target: healthy; None for a drill that starts its own cluster.
        directory: for the drill's files, empty.
        name: begins the names of its topics, groups and transactional.ids: unique to the run.
        seed: of `random`.
        resources: closed when the drill has ended.
        say: called with each step.

    Attributes:
        journal: what was done and seen so far.
        checks: what is to be judged when the drill has ended, by `later`.
    """

    def __init__(
        self,
        target: Target | None,
        directory: Path,
        name: str,
        seed: int,
        resources: AsyncExitStack,
        say: Callable[[str], None],
    ) -> None:
        self._target = target
        self.directory = directory
        self.name = name
        self.random = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
        self.resources = resources
        self.journal = Journal()
        self.checks: list[Callable[[], Awaitable[None]]] = []
        self._say = say
        self._begun_s = time.monotonic()
        self._proxy: Proxy | None = None
        self._topics = 0

    @property
    def target(self) -> Target:
        """Return what the drill acts on."""
        if self._target is None:
            raise LookupError("a drill with its own cluster sets its target first")
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        self._target = target

    @property
    def access(self) -> Access:
        """Return how a client reaches the brokers, past the proxy."""
        return self.target.access

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses, past the proxy."""
        return self.target.bootstrap_servers

    @property
    def now_s(self) -> float:
        """Return the seconds since the drill began."""
        return round(time.monotonic() - self._begun_s, 3)

    # What is done

    def step(self, text: str) -> None:
        """Note what the drill does now, in words that a reader understands without the code."""
        self.journal.steps.append(Moment(self.now_s, text))
        self._say(text)

    def progress(self, text: str) -> None:
        """Say how far a long step is, without noting it."""
        self._say(text)

    def evidence(self, fault: str, what: str) -> None:
        """Note what shows that a fault took effect."""
        self.journal.faults.append(Evidence(fault, what, self.now_s))

    @asynccontextmanager
    async def fault(self, fault: F) -> AsyncIterator[F]:
        """Make a fault, and heal it when the context is left, however that happens.

        Raises:
            NoEvidenceError: nothing shows that it took effect, neither when it is made nor before it is healed.
        """
        first, faults = len(self.journal.faults), self.journal.faults
        try:
            what = await fault.inject(self.target)
            self.step(f"fault: {fault.name}{f' ({what})' if what else ''}")
            if what:
                self.evidence(fault.name, what)
            yield fault
        finally:
            await fault.heal(self.target)
        own = [place for place in range(first, len(faults)) if faults[place].fault == fault.name]
        if not own:
            raise NoEvidenceError(f"nothing shows that this fault took effect: {fault.name}")
        for place in own:
            faults[place] = msgspec.structs.replace(faults[place], healed_s=self.now_s)
        self.step(f"healed: {fault.name}")

    async def proxy(self) -> Proxy:
        """Return the proxy in front of the brokers; it is opened at the first call."""
        if self._proxy is None:
            self._proxy = await self.resources.enter_async_context(Proxy(self.bootstrap_servers))
        return self._proxy

    async def topic(self, partitions: int = 1, *, replicas: int = 3, on: Sequence[str] = (), **configs: str) -> str:
        """Create a topic of the drill's own, known to every broker.

        Args:
            on: the brokers that have its replicas, the first leader first; any `replicas` brokers by default.
            configs: as Kafka names them, with underscores in place of dots, such as min_insync_replicas.
        """
        self._topics += 1
        name = f"{self.name}-{self._topics}"
        nodes = [node_id(broker) for broker in on]
        await create_topic(self.access, name, partitions, replicas=replicas, on=nodes, **configs)
        return name

    # What is seen

    def observing(
        self, topics: Iterable[str], groups: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Sample throughput, log end, LSO and lag for the report's time line, until the context is left.

        Args:
            topics: which exist.
            groups: consumer groups, each with its input topic.
        """
        return observing(self.access, topics, groups or {}, lambda: self.now_s, self.journal.samples)

    def expect(self, what: str, seen: object, expected: object) -> None:
        """Note a figure or fact, and whether it is the expected one."""
        self._observe(what, str(seen), str(expected), is_expected=seen == expected)

    def expect_that(self, what: str, seen: object, expected: str, *, holds: bool) -> None:
        """Note a figure or fact, and whether it holds what is expected, in words such as `at most 12 s`."""
        self._observe(what, str(seen), expected, is_expected=holds)

    def anomaly(self, kind: Anomaly, where: Iterable[str]) -> None:
        """Note anomalies of one kind that a checker found, one text for each: where it is."""
        found = list(where)
        if found:
            self.journal.anomalies.append(Found(kind, len(found), found[:WHERE_MAX]))

    def later(self, check: Callable[[], Awaitable[None]]) -> None:
        """Let a check run when the drill has ended, while the next drills run; the verdict waits for it."""
        self.checks.append(check)

    def _observe(self, what: str, seen: str, expected: str, *, is_expected: bool) -> None:
        self.journal.observations.append(Observation(self.now_s, what, seen, expected, is_expected))
        self._say(f"{what}: {seen}" if is_expected else f"NOT EXPECTED: {what}: {seen}, not {expected}")
