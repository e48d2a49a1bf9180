"""The drill of an alert: silent alert, fault, alert, healing, proof, silent alert.

Invariant: a fault is healed even if its alert did not fire. An alert over the last minute outlasts its fault by a
minute: the drill ends before, and whether the alert is silent again is judged later.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from deploy import PROJECT_ROOT
from deploy.drills.alerts.alert import AlertFault, SiteFault
from deploy.drills.alerts.site import NotBookedOnceError, Site
from deploy.drills.alerts.timeline import Spell
from deploy.drills.drill import NO_ROW, Drill, Needs
from deploy.drills.stage import Stage
from deploy.drills.target import Target
from deploy.drills.waiting import until

TAG: Final = "alert"
SILENT_S: Final = 120.0  # an earlier drill may have made it fire: counts are of the last minute
RESOLVED_S: Final = 120.0  # the same
HEALED_S: Final = 400.0
"""For healing and for the proof: brokers come back, and the pipeline drains."""
_ANNOTATIONS: Final = {"summary", "description", "runbook_url", "dashboard"}
_SEVERITIES: Final = {"critical", "warning"}
_NOT_FILLED: Final = ("<no value>", "error expanding template", "{{")


def drill(alert: AlertFault, place: int) -> Drill:
    """Return the drill of an alert; `place` is its place in the order of a run."""

    async def steps(stage: Stage) -> None:
        """Inject the fault on a stack with all services, the monitor and Prometheus: the alert must fire in time.

        Its labels must be the right ones, and its texts filled in. After healing, every payment must be booked once,
        and the alert must be silent again.
        """
        await _Firing(stage, alert).run()

    return Drill(
        row=NO_ROW,
        name=alert.name,
        claim=alert.does.removesuffix("."),
        steps=steps,
        needs=Needs.MONITORING,
        tags=(TAG,),
        quick=alert.quick,
        within_s=SILENT_S + 2 * alert.within_s + HEALED_S,
        reading=(f"docs/runbooks/{alert.name}.md", "docs/drills/alerts.md"),
        place=place,
    )


class _OnSite:
    """An alert's fault as a drill's."""

    def __init__(self, fault: SiteFault, site: Site, name: str) -> None:
        self.name = name
        self._fault = fault
        self._site = site

    async def inject(self, target: Target) -> str:  # noqa: ARG002 # a fault's signature
        """See `SiteFault.inject`."""
        return await self._fault.inject(self._site)

    async def heal(self, target: Target) -> None:  # noqa: ARG002 # a fault's signature
        """See `SiteFault.heal`."""
        await self._fault.heal(self._site)


class _Firing:
    """One drill under way."""

    def __init__(self, stage: Stage, alert: AlertFault) -> None:
        if not isinstance(stage.target, Site):
            raise TypeError("the drill of an alert needs a monitored stack")
        self._stage = stage
        self._site = stage.target
        self._alert = alert
        self._spell: Spell | None = None
        self._healed_s = 0.0

    async def run(self) -> None:
        """Run the drill from a silent alert to the proof."""
        stage, site, alert = self._stage, self._site, self._alert
        before = f"seconds until {alert.name} was silent before"
        if not await self._in_time(self._quiet(time.monotonic()), before, SILENT_S):
            return
        begun_s = time.monotonic()
        async with stage.fault(_OnSite(alert.fault(), site, alert.does.removesuffix("."))):
            await self._fire(begun_s, time.monotonic())
            if alert.ends_itself and self._spell is not None:
                await self._resolve(RESOLVED_S, f"silence by itself within {RESOLVED_S:.0f} s")
        self._healed_s = time.monotonic()
        await site.settle()
        await self._prove()
        stage.journal.records = site.paid
        if self._spell is not None and not alert.ends_itself:
            stage.later(self._resolve_healed)

    async def _fire(self, begun_s: float, injected_s: float) -> None:
        """Wait until the alert fires, and check what it says."""
        alert = self._alert

        def firing() -> float | None:
            self._spell = self._site.watch.first(alert.name, alert.labels, begun_s)
            return None if self._spell is None else max(self._spell.begun_s - injected_s, 0.0)

        await self._in_time(firing, f"seconds until {alert.name} fired", alert.within_s)
        if self._spell is not None:
            self._stage.step(f"the alert says: {self._spell.annotations.get('summary', '')}")
            self._stage.expect("what is wrong in its labels and texts", faults_in(self._spell), [])

    async def _prove(self) -> None:
        found = ""
        try:
            await self._site.prove()
        except NotBookedOnceError as error:
            found = str(error)
        self._stage.expect("findings of `once verify`", found or "none", "none")

    async def _resolve_healed(self) -> None:
        left_s = max(self._healed_s + RESOLVED_S - time.monotonic(), 1.0)
        await self._resolve(left_s, f"silence within {RESOLVED_S:.0f} s of healing")

    async def _resolve(self, within_s: float, expected: str) -> None:
        """Wait until the alert is silent again, and note the seconds since it fired."""
        await self._in_time(self._silent, f"seconds until {self._alert.name} was silent again", within_s, expected)

    async def _in_time(
        self, seconds: Callable[[], float | None], what: str, within_s: float, expected: str = ""
    ) -> bool:
        """Wait until there is a number of seconds, and note it; return whether it came in time."""
        found: float | None = None

        def reached() -> bool:
            nonlocal found
            found = seconds()
            return found is not None

        with suppress(TimeoutError):
            await until(reached, what, within_s)
        expected = expected or f"at most {within_s:.0f}"
        self._stage.expect_that(what, "none" if found is None else f"{found:.1f}", expected, holds=found is not None)
        return found is not None

    def _quiet(self, since_s: float) -> Callable[[], float | None]:
        def quiet() -> float | None:
            is_quiet = self._site.watch.quiet(self._alert.name, self._alert.labels, since_s)
            return time.monotonic() - since_s if is_quiet else None

        return quiet

    def _silent(self) -> float | None:
        """Return the seconds from the beginning of the alert to its end; None while it fires."""
        if self._spell is None:
            return None
        since_s = max(self._healed_s, self._spell.begun_s)
        silent_s = self._site.watch.silent_from(self._alert.name, self._alert.labels, since_s)
        return None if silent_s is None else silent_s - self._spell.begun_s


def faults_in(spell: Spell) -> list[str]:
    """Return an alert's labels and annotations that are missing, unknown or not filled in."""
    found = [] if spell.labels.get("severity") in _SEVERITIES else [f"severity {spell.labels.get('severity')}"]
    found += sorted(_ANNOTATIONS ^ spell.annotations.keys())
    found += [
        f"{name}: {text}"
        for name, text in spell.annotations.items()
        if not text or any(part in text for part in _NOT_FILLED)
    ]
    runbook = spell.annotations.get("runbook_url", "")
    return found if (PROJECT_ROOT / runbook).is_file() else [*found, f"no runbook {runbook}"]
