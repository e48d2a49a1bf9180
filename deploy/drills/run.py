"""Run drills one after the other, each on a healthy target, and return their results.

Drills that need the same components share a target. It is healed after each of them, and replaced if that fails.
Whatever happens, nothing is left running.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

from deploy.drills.drill import SECURE, Drill, Journal, Needs, Result, Verdict, judged
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.proxy.injection import NotInjectedError
from deploy.drills.stage import Stage
from deploy.drills.target import Target
from deploy.local.kafka.cluster import KafkaNotReadyError
from deploy.local.supervisor.stack import Stack, StackNotReadyError
from shared.kafka.client.access import Bootstrap

READY_S: Final = 120.0
PIPELINE: Final = ("gateway", "ingest", "transform", "ledger", "outbox", "balances")
_SERVICES: Final = {Needs.BROKERS: (), Needs.SERVICES: PIPELINE}

Say = Callable[[str], None]


async def run_drills(
    drills: Iterable[Drill], directory: Path, *, seed: int, on: str, say: Say, done: Callable[[Result], None]
) -> list[Result]:
    """Run drills in groups of the same needs.

    Args:
        drills: in any order.
        directory: for the targets' data and logs.
        seed: of every drill's random choices.
        on: the target's name.
        say: called with each step.
        done: called with each result.

    Raises:
        START_ERRORS: the target did not come up; each names the component.
    """
    results: list[Result] = []
    chosen = sorted(drills, key=lambda one: (one.needs, one.order))
    for needs, group in groupby(chosen, key=lambda one: one.needs):
        async with AsyncExitStack() as stack:
            runner = _Runner(stack, directory, needs, seed, on, say)
            for drill in group:
                result = await runner.run(drill)
                done(result)
                results.append(result)
    return sorted(results, key=lambda one: (one.row[0], int(one.row[1:])))


class _Runner:
    """Runs the drills of one group."""

    def __init__(self, resources: AsyncExitStack, directory: Path, needs: Needs, seed: int, on: str, say: Say) -> None:
        self._resources = resources
        self._directory = directory
        self._needs = needs
        self._seed = seed
        self._on = on
        self._say = say
        self._target: Target | None = None

    async def run(self, drill: Drill) -> Result:
        """Run one drill. What it cannot do is its verdict; the next one runs."""
        begun_s = time.monotonic()
        if self._on not in drill.targets:
            return self._result(drill, Verdict.NOT_ON_THIS_TARGET, f"runs on {', '.join(drill.targets)}", begun_s)
        target = None if drill.needs is Needs.OWN else await self._healthy()
        self._say(f"{drill.row} {drill.name}: {drill.claim}")
        begun_s = time.monotonic()
        journal = Journal()
        try:
            async with asyncio.timeout(drill.within_s), AsyncExitStack() as resources:
                files = resources.enter_context(tempfile.TemporaryDirectory(prefix=f"{drill.name}-"))
                name = f"{drill.name}-{secrets.token_hex(3)}"
                stage = Stage(target, Path(files), name, self._seed, resources, lambda text: self._say(f"    {text}"))
                journal = stage.journal
                await drill.steps(stage)
            verdict, reason = judged(drill, journal)
        except (NoEvidenceError, NotInjectedError) as error:
            verdict, reason = Verdict.NO_DATA, str(error)
        except Exception as error:  # noqa: BLE001 # whatever it is, it is this drill's verdict, and the next one runs
            verdict, reason = Verdict.FAILED, f"{type(error).__name__}: {error}"
        await self._heal()
        return self._result(drill, verdict, reason, begun_s, journal)

    def _result(
        self, drill: Drill, verdict: Verdict, reason: str, begun_s: float, journal: Journal | None = None
    ) -> Result:
        seconds = round(time.monotonic() - begun_s, 1)
        self._say(f"{drill.row} {verdict}{': ' if reason else ''}{reason} ({seconds} s)")
        return Result(
            drill.row,
            drill.name,
            drill.claim,
            self._on,
            sorted(drill.control),
            verdict,
            reason,
            seconds,
            self._seed,
            journal or Journal(),
        )

    async def _healthy(self) -> Target:
        if self._target is None:
            services = _SERVICES[self._needs]
            self._say(f"starting three brokers, Redis{' and the services' if services else ''}")
            self._target = await self._resources.enter_async_context(
                started(self._directory, services, secure=self._on == SECURE)
            )
        return self._target

    async def _heal(self) -> None:
        """Heal the target; one that cannot be healed is killed, and the next drill gets another."""
        if self._target is None:
            return
        try:
            await self._target.heal()
        except (StackNotReadyError, KafkaNotReadyError) as error:
            self._say(f"the target could not be healed and is replaced: {error}")
            self._target = None
            await self._resources.aclose()


@asynccontextmanager
async def started(
    directory: Path,
    services: Sequence[str],
    *,
    secure: bool = False,
    monitoring: bool = False,
    brokers: int = 3,
    broker_metrics: bool = False,
    broker_overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[Bootstrap], None] | None = None,
) -> AsyncIterator[Target]:
    """A target with brokers, Redis and these services: ready, and killed at the end. Parameters as of `Stack`.

    Raises:
        StackNotReadyError, KafkaNotReadyError, ...: it did not come up; each names the component.
    """
    with tempfile.TemporaryDirectory(prefix="target-", dir=directory) as name:
        stack = Stack(
            Path(name),
            services=services,
            secure=secure,
            monitoring=monitoring,
            brokers=brokers,
            broker_metrics=broker_metrics,
            broker_overrides=broker_overrides,
            environment=dict(environment or {}),
            prepare=prepare,
        )
        # The stack waits by itself; in a thread, so that signals reach this loop
        starting = asyncio.create_task(asyncio.to_thread(stack.start))
        try:
            await asyncio.shield(starting)
            await asyncio.to_thread(stack.wait_ready, READY_S)
            target = Target(stack)
            await target.settle()
            yield target
        finally:
            await asyncio.to_thread(stack.kill)
            await asyncio.wait([starting])  # soon, for its brokers have ended; until then it writes to the directory
            starting.exception()
