"""How long the pipeline stops when a part of it is killed: from the kill to the next commit, and the bound.

Under load, each service, each role of a broker, and Redis are killed in turn. The next commit is the first one of
records that were made after the kill, by the time in its marker. A killed process is started again at once, as a
supervisor does. A killed broker stays away until commits go on. Then an instance of the ledger is killed for good, and
the other one takes its partitions over when its session has ended.
"""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

from deploy.drills.faults.configs import GroupConfig
from deploy.drills.judge import Mark, mark, next_commits, now_ms, progress
from deploy.drills.run import PIPELINE, started
from deploy.drills.service import Service
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from deploy.drills.workload import flowing, subscribed
from deploy.local.kafka.broker_config import SESSION_TIMEOUT_MS
from deploy.repairs.menders import CHANGELOGS
from shared.events.catalogue import (
    EFFECTS_WAITING,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
)
from shared.kafka.admin.groups import Groups
from shared.kafka.client.brokers import Brokers

START_S: Final = 5.0
"""Allowed for a process to start, join its group and restore its state, on idle cores."""
WORK_S: Final = 3.0
"""Allowed for loading a coordinator's log, the clients' backoff and the work that has waited, on idle cores."""
IDLE_COMMIT_S: Final = 0.3
"""To the next commit without a fault, on idle cores; what is allowed grows with it on busy ones."""
QUORUM_S: Final = 3.0
"""controller.quorum.fetch.timeout.ms, 2 s, and a backoff of at most controller.quorum.election.backoff.max.ms, 1 s."""
GROUP_SESSIONS_MS: Final = (6_000, 3_000)
"""group.consumer.session.timeout.ms of local brokers, and another one of the ledger's group."""
HEARTBEAT_S: Final = 1.0
"""group.consumer.heartbeat.interval.ms: a member learns of its new partitions by its next heartbeat."""
PER_S: Final = 40
ROLES: Final = ("partition leader", "transaction coordinator", "group coordinator", "controller")
"""The brokers that the ledger depends on."""


class Row(msgspec.Struct, frozen=True):
    """Seconds from a kill to the next commit.

    Attributes:
        bound_s: the smallest of those that the settings implied, by the work at each kill.
        late: kills whose own bound was exceeded.
    """

    killed: str
    kills: int
    median_s: float
    worst_s: float
    bound_s: float
    late: int

    @property
    def is_within(self) -> bool:
        """Whether every kill was survived within its bound."""
        return not self.late


def row_of(killed: str, found: Sequence[tuple[float, float]]) -> Row:
    """Return the row of some kills: of each the seconds to the next commit, and its bound. Pure."""
    seconds, limits = zip(*found, strict=True)
    return Row(
        killed,
        len(found),
        round(median(seconds), 2),
        round(max(seconds), 2),
        round(min(limits), 1),
        sum(one_s > bound_s for one_s, bound_s in found),
    )


class Bound(NamedTuple):
    """The bound of a row on idle cores, and the settings and allowances that it is the sum of."""

    killed: str
    seconds: float
    because: str


def bounds() -> list[Bound]:
    """Return the bound of each row on idle cores, in the rows' order. Pure."""
    session_s, work = SESSION_TIMEOUT_MS / 1000, f"work {WORK_S:g} s"
    restart = START_S + WORK_S, f"start of the process {START_S:g} s, {work}"
    failover_s, failover = session_s + WORK_S, f"broker.session.timeout.ms {session_s:g} s, {work}"
    quorum = f"controller.quorum.fetch.timeout.ms and one backoff of the election {QUORUM_S:g} s"
    return [
        *(Bound(name, *restart) for name in (*CHANGELOGS, "redis")),
        *(Bound(role, failover_s, f"{failover}; as for the controller if it is that too") for role in ROLES[:-1]),
        Bound(ROLES[-1], failover_s + QUORUM_S, f"{failover}, {quorum}"),
        *(
            Bound(
                _for_good(session_ms),
                session_ms / 1000 + HEARTBEAT_S + WORK_S,
                f"consumer.session.timeout.ms {session_ms / 1000:g} s, a heartbeat {HEARTBEAT_S:g} s, {work}",
            )
            for session_ms in GROUP_SESSIONS_MS
        ),
    ]


def _for_good(session_ms: int) -> str:
    return f"ledger for good, session of {session_ms / 1000:g} s"


def allowed_s(idle_s: float, usual_s: float) -> float:
    """Return the seconds allowed for work that takes `idle_s` on idle cores; `usual_s` as for `failover_bound_s`."""
    return idle_s * max(1.0, usual_s / IDLE_COMMIT_S)


async def failover_bound_s(stage: Stage, broker: str, usual_s: float) -> float:
    """Return the seconds within which commits must resume when a broker dies, by the brokers' settings.

    It is fenced after broker.session.timeout.ms. If it was the controller, the others elect one first, which then
    counts that time from its election.

    Args:
        usual_s: to the next commit without a fault.
    """
    quorum_s = QUORUM_S if broker == await stage.target.controller() else 0.0
    return round(SESSION_TIMEOUT_MS / 1000 + quorum_s + allowed_s(WORK_S, usual_s), 1)


def roles(stage: Stage) -> dict[str, Callable[[], Awaitable[str]]]:
    """Return the brokers that the ledger depends on, by role."""
    target = stage.target
    found = (
        lambda: target.leader(LEDGER_POSTINGS, 0),
        lambda: target.transaction_coordinator("ledger-0"),
        lambda: target.group_coordinator("ledger"),
        target.controller,
    )
    return dict(zip(ROLES, found, strict=True))


async def measure(stage: Stage, service_kills: int, broker_kills: int) -> list[Row]:
    """Measure on a stage whose target runs all services.

    Args:
        service_kills: of each service.
        broker_kills: of each role of a broker, of Redis, and of an instance that another one replaces.

    Raises:
        TimeoutError: commits did not resume within a minute.
    """
    recovery = _Recovery(stage)
    async with subscribed(stage), flowing(stage, per_s=PER_S):
        for service, topic in CHANGELOGS.items():
            await recovery.restarts(service, topic, service_kills)
        await recovery.restarts("redis", EFFECTS_WAITING, broker_kills)
        for role, find in roles(stage).items():
            await recovery.failovers(role, find, broker_kills)
        for session_ms in GROUP_SESSIONS_MS:
            await recovery.takeovers(session_ms, broker_kills)
    return recovery.rows


async def recover(
    directory: Path, service_kills: int, broker_kills: int, *, seed: int, say: Callable[[str], None]
) -> list[Row]:
    """Measure on a target of its own, as `measure`; nothing is left running.

    Args:
        directory: for the target's data and logs.
        seed: of the payments.
        say: called with each step.

    Raises:
        START_ERRORS: the target did not come up; each names the component.
    """
    say("starting three brokers, Redis and the services")
    async with started(directory, PIPELINE) as target, AsyncExitStack() as resources:
        files = resources.enter_context(tempfile.TemporaryDirectory(prefix="recovery-", dir=directory))
        stage = Stage(target, Path(files), "recovery", seed, resources, say)
        return await measure(stage, service_kills, broker_kills)


class _Recovery:
    """Kills, one after the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.rows: list[Row] = []

    async def restarts(self, name: str, topic: str, kills: int) -> None:
        """Kill a component and start it again at once."""
        found = []
        for _ in range(kills):
            usual_s = await self._usual_s(topic)
            bound_s = allowed_s(START_S + WORK_S, usual_s)
            since = await mark(self._stage, [topic])
            killed_ms = now_ms()
            self._stage.target.take_away(name)
            self._stage.target.bring_back(name)
            found.append((await progress(self._stage, since, killed_ms, topic), bound_s))
            await self._stage.target.settle()
        self._add(name, found)

    async def failovers(self, role: str, find: Callable[[], Awaitable[str]], kills: int) -> None:
        """Kill the broker that has a role, and start it again when commits go on."""
        found = []
        for _ in range(kills):
            usual_s = await self._usual_s(LEDGER_BALANCES)
            broker = await find()
            bound_s = await failover_bound_s(self._stage, broker, usual_s)
            since = await mark(self._stage, [LEDGER_BALANCES])
            killed_ms = now_ms()
            self._stage.target.take_away(broker)
            found.append((await progress(self._stage, since, killed_ms, LEDGER_BALANCES), bound_s))
            await self._stage.target.heal()
        self._add(role, found)

    async def takeovers(self, session_ms: int, kills: int) -> None:
        """Kill an instance of the ledger for good while another one runs, until that one commits on all partitions."""
        found = []
        async with self._stage.fault(GroupConfig("ledger", "consumer.session.timeout.ms", str(session_ms))):
            for number in range(kills):
                usual_s = await self._usual_s(LEDGER_BALANCES)
                one = Service("ledger", self._stage.bootstrap_servers, self._stage.directory, f"{session_ms}-{number}")
                self._stage.resources.callback(one.process.kill)
                one.start()
                lost = await self._shared(one)
                since = await mark(self._stage, [LEDGER_BALANCES])
                killed_ms = now_ms()
                one.kill()
                seconds = await self._all_commit(since, killed_ms, lost)
                found.append((seconds, session_ms / 1000 + HEARTBEAT_S + allowed_s(WORK_S, usual_s)))
        self._add(_for_good(session_ms), found)

    async def _shared(self, one: Service) -> set[int]:
        """Wait until both instances have partitions, and return those of this one."""
        owned: set[int] = set()

        async def reached() -> bool:
            async with Brokers(self._stage.access) as brokers:
                view = await brokers.view([])
                members = await Groups(brokers).members("ledger", view.brokers)
            targets = {member.client_id: {number for _, number in member.targets} for member in members}
            owned.clear()
            owned.update(targets.get(one.process.name, set()))
            return len(targets) > 1 and all(targets.values())

        await eventually(reached, f"{one.process.name} has partitions", 60.0)
        return owned

    async def _all_commit(self, since: Mark, at_ms: int, partitions: set[int]) -> float:
        """Return the seconds until each of these partitions has a commit of records made later."""
        wanted = {(LEDGER_BALANCES, number) for number in partitions}
        found: dict[tuple[str, int], float] = {}

        async def reached() -> bool:
            found.update(await next_commits(self._stage, since, at_ms))
            return wanted <= found.keys()

        await eventually(reached, f"commits on {sorted(wanted)}", 60.0)
        return max(found[target] for target in wanted)

    async def _usual_s(self, topic: str) -> float:
        """Return the seconds to the next commit without a fault."""
        since = await mark(self._stage, [topic])
        return await progress(self._stage, since, since.at_ms, topic)

    def _add(self, killed: str, found: list[tuple[float, float]]) -> None:
        if not found:
            return
        row = row_of(killed, found)
        self.rows.append(row)
        self._stage.step(
            f"{killed}: median {row.median_s} s, worst {row.worst_s} s, smallest bound {row.bound_s} s, {row.late} late"
        )
