"""Soak: the whole stack under a steady load and random faults for a chosen time; then all judges.

The time is cut into cycles. In three quarters of each, one fault follows another: a service, Redis or a broker by its
role is killed, taken away for a while, or paused. The last quarter is quiet, and there the pipeline must make progress.
Meanwhile a history is recorded on registers of its own. In the end everything is healed, and these judge: the checker
of histories, `once verify`, Spark's reconciliation and the view.

Memory and open files are compared at the end of quiet quarters, when leaders and coordinators are where they were and
the connections to others are closed: a leak is what stays. From the second third on services are paused but not killed,
so that a leak has time to show. Services remember a bounded number of payments, and the bound is small, so that what
they hold by design is full by then. Long pauses then make backlogs that fill inboxes and buffers as well.
"""

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from deploy.cut import DEFAULTS
from deploy.drills.drill import Drill, Needs
from deploy.drills.faults.fault import Fault
from deploy.drills.faults.processes import Kill, Pause, TakeAway
from deploy.drills.footprint import GROWTH_MAX, Sample, footprint, growths
from deploy.drills.history import History
from deploy.drills.judge import verified
from deploy.drills.opinions import differences, disagreements, reconciling, view
from deploy.drills.recording import recording
from deploy.drills.registers import Registers
from deploy.drills.run import PIPELINE, started
from deploy.drills.stage import Stage
from deploy.drills.target import Target
from deploy.drills.workload import flowing, subscribe_to_receipts
from deploy.local.supervisor.topology import VIEW
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_RAW
from shared.kafka.admin.groups import PIPELINE as GROUPS
from shared.kafka.client.access import CONNECTION_IDLE_MS
from shared.kafka.client.reader import end_offsets

CYCLE_S: Final = 240.0
QUIET: Final = 0.25
"""The share of a cycle without faults."""
SETTLED_S: Final = CONNECTION_IDLE_MS / 1000 + 5.0
"""From the last fault's healing until no connection is left that only the fault made necessary."""
PAYMENTS_PER_S: Final = 50
REGISTERS_PAUSE_S: Final = 0.3
BACKLOG: Final = 1 / 30
"""The share of the time for which ingest, then the outbox, is paused at the beginning of the second third."""
HELD_S: Final = (1.0, 12.0)
"""How long a component is away or paused: up to twice a member's session, and longer than a broker's."""
JUDGED_FROM_MINUTES: Final = 15.0
"""Shorter runs report memory and open files, and do not judge them: windows and caches are not full."""
WINDOW: Final = 500
"""Identities and reversible payments that services remember for each partition: full after a minute."""
HEALED_S: Final = 1800.0
"""For everything behind the faults: Spark takes a quarter of an hour where others use the machine as well."""
HEALTHY_S: Final = 300.0
"""For the stack after a fault: how soon it recovers is not what a soak shows."""
DRAINED_S: Final = 300.0
HISTORY: Final = "history.json"
SAMPLES: Final = "footprints.json"
_WINDOWS: Final = {"ONCE_INGEST_WINDOW": str(WINDOW), "ONCE_LEDGER_REVERSAL_WINDOW": str(WINDOW)}
_CUT: Final = msgspec.structs.replace(DEFAULTS, identity_window=WINDOW, reversal_window=WINDOW)
_SERVICES: Final = ("ingest", "transform", "ledger", "outbox", VIEW)
_REDIS: Final = "redis"


class Victim(NamedTuple):
    """A component that a fault hits, and why it was chosen."""

    component: str
    role: str


def soak_drill(minutes: float, directory: Path) -> Drill:
    """Return the soak as a drill.

    Args:
        minutes: how long faults are made; healing and judging come on top.
        directory: for its history and the logs; made if it is not there.
    """

    async def steps(stage: Stage) -> None:
        """Inject random faults under load with quiet quarters, heal everything, and let all judges look."""
        await _soak(stage, minutes, directory)

    return Drill(
        row="S1",
        name="soak",
        claim=f"Random faults during {minutes:g} min leave every payment booked once",
        steps=steps,
        needs=Needs.OWN,
        within_s=minutes * 60 + HEALED_S,
        reading=("docs/testing.md", "ARCHITECTURE.md"),
        command=f"once drill soak --minutes {minutes:g}",
    )


async def _soak(stage: Stage, minutes: float, directory: Path) -> None:
    stage.step("starting three brokers, Redis and the services")
    stage.target = await stage.resources.enter_async_context(
        started(stage.directory, PIPELINE, environment=_WINDOWS, prepare=subscribe_to_receipts)
    )
    stage.target.healthy_s = HEALTHY_S
    soak = _Soak(stage, minutes * 60)
    observed = stage.observing([PAYMENTS_RAW, LEDGER_POSTINGS], dict(GROUPS))
    try:
        async with (
            recording(stage, pause_s=REGISTERS_PAUSE_S) as soak.registers,
            flowing(stage, PAYMENTS_PER_S),
            observed,
        ):
            await soak.run()
            stage.step("healing everything")
            await stage.target.heal()
        await _judge(stage)
    finally:
        # Before the verdict, which may not come in time
        history = None if soak.registers is None else soak.registers.history
        await asyncio.to_thread(keep, history, soak.samples, stage.target, directory)
    soak.judge(judged=minutes >= JUDGED_FROM_MINUTES)


def keep(history: History | None, samples: list[Sample], target: Target, directory: Path) -> None:
    """Keep a history, if there is one, the samples of memory and open files, and all logs."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SAMPLES).write_bytes(msgspec.json.encode(samples))
    if history is not None:
        (directory / HISTORY).write_bytes(msgspec.json.encode(history))
    shutil.copytree(target.directory / "logs", directory / "logs", dirs_exist_ok=True)


class _Soak:
    """The time of the faults.

    Args:
        seconds: how long.

    Attributes:
        registers: which record a history.
        samples: of each service's memory and open files, at the end of quiet quarters.
    """

    def __init__(self, stage: Stage, seconds: float) -> None:
        self.registers: Registers | None = None
        self.samples: list[Sample] = []
        self._stage = stage
        self._target = stage.target
        # Of its own: what the load draws depends on the time that faults take
        self._chance = random.Random(stage.random.getrandbits(32))  # noqa: S311 # repeatable is what is wanted
        self._seconds = seconds
        self._cycle_s = min(CYCLE_S, seconds)
        self._begun_s = 0.0
        self._progress: list[int] = []
        self._kills_services = True

    async def run(self) -> None:
        """Make faults, with quiet quarters, until the time is over; the last quarter is a quiet one."""
        self._begun_s = self._stage.now_s
        while self._passed_s < self._seconds:
            loud_until_s = self._passed_s + (1 - QUIET) * self._cycle_s
            while self._passed_s < loud_until_s:
                if self._kills_services and self._passed_s >= self._seconds / 3:
                    self._kills_services = False
                    await self._backlog()
                await self._fault()
                await asyncio.sleep(self._chance.uniform(0.0, 2.0))
            await self._quiet()

    def judge(self, *, judged: bool) -> None:
        """Note whether each quiet quarter saw progress, and whether memory and open files are bounded."""
        stage = self._stage
        least = min(self._progress)
        stage.expect_that(
            f"fewest offsets that a quiet quarter added to {LEDGER_POSTINGS}", least, "at least 1", holds=least > 0
        )
        found = growths(self.samples, self._seconds)
        if found:
            stage.journal.tables["Quiet quarters: memory in nine of ten samples, and the median of open files"] = [
                {
                    "service": one.process,
                    "figure": one.figure,
                    "second third": round(one.second, 1),
                    "last third": round(one.last, 1),
                    "growth, %": round(100 * one.share, 1),
                }
                for one in found
            ]
        if judged:
            for one in found:
                stage.expect_that(
                    f"growth of {one.process}, {one.figure}",
                    f"{100 * one.share:.1f} %",
                    f"at most {100 * GROWTH_MAX:.0f} %",
                    holds=one.is_bounded,
                )
            stage.expect("services with figures of both thirds", len(found) // 2, len(PIPELINE))

    @property
    def _passed_s(self) -> float:
        return self._stage.now_s - self._begun_s

    async def _backlog(self) -> None:
        """Make backlogs. What ingest lets through after its pause, the outbox works off as it comes: it has its own."""
        self._stage.step("backlogs; from now on services are paused, and not killed")
        for service in ("ingest", "outbox"):
            async with self._stage.fault(Pause(service)):
                await asyncio.sleep(BACKLOG * self._seconds)

    async def _fault(self) -> None:
        victim = await choose_victim(self._target, self._chance)
        self._stage.step(f"chosen: {victim.component}, {victim.role}")
        kills = victim.component not in _SERVICES or self._kills_services
        async with self._stage.fault(choose_fault(victim.component, self._chance, kills=kills)):
            await asyncio.sleep(self._chance.uniform(*HELD_S))

    async def _quiet(self) -> None:
        """Let the stack work, count what it books, and look at its footprint once it has settled."""
        self._stage.step("a quiet quarter")
        until_s = self._passed_s + QUIET * self._cycle_s
        before = await self._booked()
        await self._target.heal()
        settled_s = self._passed_s + SETTLED_S
        while self._passed_s < until_s:
            if self._passed_s >= settled_s:
                self.samples += self._footprints()
            await asyncio.sleep(1.0)
        self._progress.append(await self._booked() - before)

    def _footprints(self) -> list[Sample]:
        found = []
        for name in PIPELINE:
            component = self._target.component(name)
            pid = component.process.pid
            held = footprint(pid) if pid is not None and component.ready else None
            if held is not None:
                found.append(Sample(self._passed_s, name, held))
        return found

    async def _booked(self) -> int:
        return sum((await end_offsets(self._stage.access, [LEDGER_POSTINGS])).values())


async def choose_victim(target: Target, chance: random.Random) -> Victim:
    """Choose a service, Redis, or a broker by its role."""
    kind, service = chance.random(), chance.choice(_SERVICES)
    group, source = chance.choice(GROUPS)
    if kind < 0.4:
        return Victim(service, "a service")
    if kind < 0.5:
        return Victim(_REDIS, "what the outbox claims effects in")
    if kind < 0.65:
        return Victim(await target.leader(source), f"the leader of {source} [0]")
    if kind < 0.8:
        name = f"{group}-0"
        return Victim(await target.transaction_coordinator(name), f"the transaction coordinator of {name}")
    if kind < 0.9:
        return Victim(await target.group_coordinator(group), f"the coordinator of group {group}")
    return Victim(await target.controller(), "the active controller")


def choose_fault(component: str, chance: random.Random, *, kills: bool) -> Fault:
    """Choose what happens to a component; without `kills` it keeps its process."""
    faults: Sequence[type[Kill | TakeAway | Pause]] = (Kill, TakeAway, Pause) if kills else (Pause,)
    return chance.choice(faults)(component)


async def _judge(stage: Stage) -> None:
    """Let the verifier, Spark and the view judge what the topics hold, and compare them."""
    stage.step("verifying from offset 0, and reconciling the same topics in Spark")
    async with reconciling(stage.directory / "lake") as spark:
        verdict = await verified(stage, within_s=DRAINED_S, identity_window=WINDOW, reversal_window=WINDOW)
        found = await spark.reconcile(stage.access, stage.progress, _CUT)
    viewed = await view(stage.target.component(VIEW).endpoint)
    stage.expect("what Spark found, or counted otherwise", disagreements(verdict, found), [])
    stage.expect("where the view differs", differences(viewed, verdict, found), [])
