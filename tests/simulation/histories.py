"""A history: the services at work on the simulated cluster, disturbed as its plan says, healed, drained and judged."""

import asyncio
import gc
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import SUBMITTED_BY
from shared.events.validation import key_of
from tests.simulation import judge
from tests.simulation.cluster import Note
from tests.simulation.disturber import Disturber
from tests.simulation.instances import Logged
from tests.simulation.loop import outside
from tests.simulation.network import Frame
from tests.simulation.plan import HEALED_S, SERVICES, Plan, Written, probes
from tests.simulation.world import World, history

BOOKED_S: Final = 120.0
"""From the healing until everything is booked, virtual time."""
PROBED_S: Final = 20.0
"""Until one more record in each partition is, at rest."""
LOOK_S: Final = 0.5
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"


@dataclass(slots=True)
class Result:
    """How a history ended.

    Attributes:
        verdict: pass, fail, or unknown where it could not be judged.
        findings: what is wrong, each by the invariant or the promise that it breaks.
        booked_s: virtual time from the healing until everything was booked.
        frames: everything that was sent.
        notes: what else happened, and what was logged.
    """

    verdict: str = UNKNOWN
    findings: list[str] = field(default_factory=list)
    booked_s: float = 0.0
    frames: list[Frame] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class Run:
    """One history under way."""

    def __init__(self, world: World, planned: Plan, result: Result) -> None:
        self._world = world
        self._plan = planned
        self._result = result
        self._loop = world.network.loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun_s = self._loop.time()

    async def run(self) -> None:
        """Run it to its verdict."""
        disturber = Disturber(self._world, self._plan.instances, self._plan.partitions, self._begin)
        for written in self._plan.inputs:
            self._at(written.at_s, self._write(written))
        for fault in self._plan.faults:
            self._at(fault.at_s, disturber.disturb(fault))
        disturber.start()
        await asyncio.sleep(HEALED_S)
        for task in self._tasks:
            task.cancel()
        disturber.heal()
        self._result.booked_s = await self._drain(BOOKED_S)
        for probe in probes(self._plan.partitions):
            await self._write(probe)
        await self._drain(PROBED_S)
        disturber.stop()
        self._judge()

    def _at(self, at_s: float, work: Coroutine[Any, Any, None]) -> None:
        async def later() -> None:
            await asyncio.sleep(self._begun_s + at_s - self._loop.time())
            await work

        self._begin(later())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, context=outside())  # a process may have caused it
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.failure = task.exception()

    async def _write(self, written: Written) -> None:
        key, value = written.key, written.value.encode()
        partition = key_of(value, self._plan.partitions)[1] if written.topic == PAYMENTS_RAW else 0
        headers = () if written.submitted_by is None else ((SUBMITTED_BY, written.submitted_by.encode()),)
        await self._world.write(written.topic, partition, None if key is None else key.encode(), value, headers)

    async def _drain(self, deadline_s: float) -> float:
        """Wait until everything is booked; returns how long it took, in virtual time."""
        begun_s = self._loop.time()
        while True:
            late = list(judge.behind(self._world.cluster, SERVICES))
            took_s = self._loop.time() - begun_s
            if not late:
                return took_s
            if took_s > deadline_s:
                self._result.findings += [f"liveness: {text} after {deadline_s:.0f} s" for text in late]
                return took_s
            await asyncio.sleep(LOOK_S)

    def _judge(self) -> None:
        verdict = judge.audit(self._world.cluster)
        found = judge.findings(verdict)
        self._result.findings += [
            f"{one.invariant} {one.kind} at {one.where}: {one.detail}"
            for one in verdict.violations
            if one.kind in found
        ]
        moved = sorted(set(judge.moved_back(self._world.cluster)))
        self._result.findings += [f"offsets: the group's offset of {place} went back" for place in moved]
        self._result.findings += [
            f"recovery: a transaction that was not torn was completed: {text}"
            for text in judge.needlessly_completed(self._world.cluster)
        ]
        frames, notes = self._world.network.frames, self._world.cluster.notes
        self._result.findings += [f"liveness: {text}" for text in judge.fenced_without_successor(frames, notes)]
        self._result.verdict = FAIL if self._result.findings else PASS if verdict.accepted else UNKNOWN


def run(planned: Plan) -> Result:
    """Run a history."""
    result = Result()

    async def main(world: World) -> None:
        logged, root = Logged(world.cluster), logging.getLogger()
        root.addHandler(logged)
        try:
            await Run(world, planned, result).run()
        finally:
            root.removeHandler(logged)
            result.frames, result.notes = world.network.frames, world.cluster.notes

    random.seed(f"client-{planned.seed}")
    gc.disable()  # what it collects may log, at a moment that depends on what was there before
    try:
        history(main, planned.seed, planned.first_wait_s, planned.transaction_version, partitions=planned.partitions)
    except Exception as error:  # noqa: BLE001 # of the simulation itself: it proves nothing
        result.verdict, result.findings = UNKNOWN, [f"simulation: {error!r}"]
    finally:
        gc.enable()
    return result
