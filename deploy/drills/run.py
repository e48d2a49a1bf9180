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

from deploy.drills.alerts.monitored import monitored
from deploy.drills.drill import SECURE, Drill, Journal, Needs, Result, Verdict, judged
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.proxy.injection import NotInjectedError
from deploy.drills.stage import Stage
from deploy.drills.starting import starting
from deploy.drills.target import LocalTarget, NoSuchRoleError, NotOnThisTargetError, Target
from deploy.local.kafka.cluster import KafkaNotReadyError
from deploy.local.supervisor.stack import Stack, StackNotReadyError
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError
from shared.settings import InstallationSettings

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
            runner = _Runner(stack, directory, needs, seed, on, say, done)
            results += await runner.run_all(group)
    return in_order(results, chosen)


async def run_on(
    target: Target, drills: Iterable[Drill], *, seed: int, say: Say, done: Callable[[Result], None] = lambda _: None
) -> list[Result]:
    """Run drills on a target that runs already, in this order; the caller ends it. Parameters as of `run_drills`."""
    async with AsyncExitStack() as stack:
        runner = _Runner(stack, target.directory, Needs.OWN, seed, target.name, say, done, target)
        return await runner.run_all(drills)


def in_order(results: Iterable[Result], drills: Iterable[Drill]) -> list[Result]:
    """Return results by their drills' rows, and those of alerts last."""
    order = {one.name: one.order for one in drills}
    return sorted(results, key=lambda one: order[one.name])


def explained(error: Exception, journal: Journal, limit_s: float | None = None) -> str:
    """Return why a drill could not go on. Pure.

    Args:
        limit_s: the drill's limit, if it was reached; the cancelled wait is then a note of the error's cause.
    """
    step = f"the last step was: {journal.steps[-1].what}" if journal.steps else "before its first step"
    if limit_s is not None and isinstance(error, TimeoutError):
        waits = getattr(error.__cause__, "__notes__", [])
        return "; ".join(
            [f"not done within {limit_s:g} s, its limit", *(f"it waited until: {one}" for one in waits[:1]), step]
        )
    return f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__}; {step}"


class _Runner:
    """Runs the drills of one group."""

    def __init__(
        self,
        resources: AsyncExitStack,
        directory: Path,
        needs: Needs,
        seed: int,
        on: str,
        say: Say,
        done: Callable[[Result], None],
        target: Target | None = None,
    ) -> None:
        self._resources = resources
        self._directory = directory
        self._needs = needs
        self._seed = seed
        self._on = on
        self._say = say
        self._done = done
        self._target = target
        self._is_given = target is not None
        self._results: list[Result] = []
        self._judging: list[asyncio.Task[None]] = []

    async def run_all(self, drills: Iterable[Drill]) -> list[Result]:
        """Run drills one after the other. What one of them cannot do is its verdict; the next one runs."""
        try:
            for drill in drills:
                await self._run(drill)
            await asyncio.gather(*self._judging)
        finally:
            for judging in self._judging:
                judging.cancel()
        return self._results

    async def _run(self, drill: Drill) -> None:
        if self._on not in drill.targets:
            self._report(drill, Verdict.NOT_ON_THIS_TARGET, f"it runs on {', '.join(drill.targets)}", 0.0, Journal())
            return
        target = None if drill.needs is Needs.OWN else await self._healthy()
        self._say(f"{drill.title}: {drill.claim}")
        begun_s = time.monotonic()
        stage: Stage | None = None
        failure: tuple[Verdict, str] | None = None
        limit = asyncio.timeout(drill.within_s)
        try:
            async with limit, AsyncExitStack() as resources:
                files = resources.enter_context(tempfile.TemporaryDirectory(prefix=f"{drill.name}-"))
                name = f"{drill.name}-{secrets.token_hex(3)}"
                stage = Stage(target, Path(files), name, self._seed, resources, lambda text: self._say(f"    {text}"))
                await drill.steps(stage)
        except (NoEvidenceError, NotInjectedError) as error:
            failure = Verdict.NO_DATA, str(error)
        except NotOnThisTargetError as error:
            failure = Verdict.NOT_ON_THIS_TARGET, str(error)
        except Exception as error:  # noqa: BLE001 # whatever it is, it is this drill's verdict, and the next one runs
            limit_s = drill.within_s if limit.expired() else None
            failure = Verdict.FAILED, explained(error, stage.journal if stage else Journal(), limit_s)
        await self._heal()
        seconds = time.monotonic() - begun_s
        if stage is None or failure is not None:
            self._report(drill, *(failure or (Verdict.FAILED, "")), seconds, stage.journal if stage else Journal())
        elif stage.checks:
            self._judging.append(asyncio.create_task(self._judge(drill, stage, seconds)))
        else:
            self._report(drill, *judged(drill, stage.journal), seconds, stage.journal)

    async def _judge(self, drill: Drill, stage: Stage, seconds: float) -> None:
        """Make the checks that a drill left for later."""
        try:
            for check in stage.checks:
                await check()
            verdict, reason = judged(drill, stage.journal)
        except Exception as error:  # noqa: BLE001 # the same
            verdict, reason = Verdict.FAILED, explained(error, stage.journal)
        self._report(drill, verdict, reason, seconds, stage.journal)

    def _report(self, drill: Drill, verdict: Verdict, reason: str, seconds: float, journal: Journal) -> None:
        seconds = round(seconds, 1)
        self._say(f"{drill.key} {verdict}{': ' if reason else ''}{reason} ({seconds} s)")
        result = Result(
            drill.row,
            drill.name,
            drill.claim,
            self._on,
            sorted(drill.control),
            verdict,
            reason,
            seconds,
            self._seed,
            journal,
        )
        self._results.append(result)
        self._done(result)

    async def _healthy(self) -> Target:
        if self._target is None and self._needs is Needs.MONITORING:
            self._say("starting three brokers, Redis, the services and Prometheus")
            files = tempfile.TemporaryDirectory(prefix="target-", dir=self._directory)
            directory = Path(self._resources.enter_context(files))
            self._target = await self._resources.enter_async_context(monitored(directory))
        if self._target is None:
            services = _SERVICES[self._needs]
            self._say(f"starting three brokers, Redis{' and the services' if services else ''}")
            self._target = await self._resources.enter_async_context(
                started(self._directory, services, secure=self._on == SECURE)
            )
        return self._target

    async def _heal(self) -> None:
        """Heal the target; one that cannot be healed is killed, and the next drill gets another.

        A target that was given stays: the caller has no other.
        """
        if self._target is None:
            return
        try:
            await self._target.heal()
        except (StackNotReadyError, KafkaNotReadyError, KafkaUnavailableError, NoSuchRoleError) as error:
            if self._is_given:
                self._say(f"the target could not be healed: {error}")
                return
            self._say(f"the target could not be healed and is replaced: {error}")
            self._target = None
            await self._resources.aclose()


@asynccontextmanager
async def started(
    directory: Path,
    services: Sequence[str],
    *,
    secure: bool = False,
    brokers: int = 3,
    partitions: int = InstallationSettings.partitions,
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
            brokers=brokers,
            partitions=partitions,
            broker_metrics=broker_metrics,
            broker_overrides=broker_overrides,
            environment=dict(environment or {}),
            prepare=prepare,
        )
        async with starting(stack):
            target = LocalTarget(stack)
            await target.settle()
            yield target
