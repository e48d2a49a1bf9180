"""Run drills one after the other: silent alert, fault, alert, healing, proof, silent alert.

Invariant: a fault is healed even if its alert did not fire, and one drill's failure ends no other. An alert over the
last minute outlasts its fault by a minute: the next drill runs meanwhile.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.drills.alerts.fault import Drill
from tests.drills.site import Site
from tests.drills.timeline import Spell, Watch
from tests.harness import ROOT, wait_until

PASSED = "pass"
SILENT_S = 120.0  # an earlier drill may have made it fire: counts are of the last minute
RESOLVED_S = 120.0  # the same
WRONG_CHARS_MAX = 600  # a failed verdict lists its findings
_ANNOTATIONS = {"summary", "description", "runbook_url", "dashboard"}
_NOT_FILLED = ("<no value>", "error expanding template", "{{")

Say = Callable[[str], None]


class Result(NamedTuple):
    """Result of a drill.

    Attributes:
        alert, does: the drill's.
        firing_s: seconds from the fault until the alert fired; None when it did not.
        resolved_s: seconds from then until it was silent again; None when it was not.
        summary: the alert's summary.
        verdict: PASSED, or the faults found.
    """

    alert: str
    does: str
    firing_s: float | None
    resolved_s: float | None
    summary: str
    verdict: str


class _Running:
    """One drill under way."""

    def __init__(self, site: Site, watch: Watch, drill: Drill) -> None:
        self._site = site
        self._watch = watch
        self._drill = drill
        self._injected_s = 0.0
        self._healed_s = 0.0
        self._spell: Spell | None = None
        self._resolved_s: float | None = None
        self._wrong: list[str] = []

    def fire(self) -> None:
        """Run the drill from a silent alert to the proof."""
        drill, site = self._drill, self._site
        fault = drill.fault()
        self._attempt(lambda: wait_until(self._quiet, f"{drill.alert} silent before", SILENT_S))
        if self._wrong:
            return
        begun_s = time.monotonic()
        self._attempt(lambda: fault.inject(site))
        self._injected_s = time.monotonic()
        if not self._wrong:
            self._attempt(lambda: self._await_firing(begun_s))
        if drill.ends_itself and not self._wrong:
            self._attempt(lambda: wait_until(self._silent, f"{drill.alert} resolved by itself", RESOLVED_S))
        self._attempt(lambda: fault.heal(site))
        self._healed_s = time.monotonic()
        self._attempt(site.settle)
        self._attempt(site.prove)

    def resolve(self) -> Result:
        """Wait until the alert is silent, and return the result."""
        if self._spell is not None and self._resolved_s is None:
            self._attempt(lambda: wait_until(self._silent, f"{self._drill.alert} resolved", self._left_s()))
        spell = self._spell
        return Result(
            self._drill.alert,
            self._drill.does,
            None if spell is None else max(spell.begun_s - self._injected_s, 0.0),
            None if spell is None or self._resolved_s is None else self._resolved_s - spell.begun_s,
            "" if spell is None else spell.annotations["summary"],
            "; ".join(self._wrong) or PASSED,
        )

    @property
    def wrong(self) -> str:
        """Faults found so far; empty without any."""
        return "; ".join(self._wrong)

    def _await_firing(self, begun_s: float) -> None:
        drill = self._drill

        def firing() -> bool:
            self._spell = self._watch.first(drill.alert, drill.labels, begun_s)
            return self._spell is not None

        wait_until(firing, f"{drill.alert} firing with {dict(drill.labels)}", drill.within_s)
        assert self._spell is not None
        _check(self._spell)

    def _quiet(self) -> bool:
        return self._watch.quiet(self._drill.alert, self._drill.labels)

    def _silent(self) -> bool:
        assert self._spell is not None
        since_s = max(self._healed_s, self._spell.begun_s)
        self._resolved_s = self._watch.silent_from(self._drill.alert, self._drill.labels, since_s)
        return self._resolved_s is not None

    def _left_s(self) -> float:
        return max(self._healed_s + RESOLVED_S - time.monotonic(), 1.0)

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 # any error is this drill's verdict; the next one runs
            self._wrong.append(f"{type(error).__name__}: {error}"[:WRONG_CHARS_MAX])


def run(site: Site, watch: Watch, drills: Sequence[Drill], say: Say) -> dict[str, Result]:
    """Run drills in their order.

    Args:
        site: where; warmed up.
        watch: of its Prometheus, open.
        drills: of different alerts.
        say: called with a line for each step.

    Returns:
        The result of each, by alert.
    """
    running = {}
    for number, drill in enumerate(drills, start=1):
        say(f"[{number}/{len(drills)}] {drill.alert}: {drill.does}")
        running[drill.alert] = _Running(site, watch, drill)
        running[drill.alert].fire()
        say(f"    {running[drill.alert].wrong or 'it fired, was healed, and every payment was booked once'}")
    say("waiting until the last alerts are silent again")
    return {alert: one.resolve() for alert, one in running.items()}


def _check(spell: Spell) -> None:
    """Check an alert's labels and annotations: all there, every template filled in."""
    assert spell.labels["severity"] in {"critical", "warning"}, spell
    assert spell.annotations.keys() == _ANNOTATIONS, spell
    for text in spell.annotations.values():
        assert text, spell
        assert not any(part in text for part in _NOT_FILLED), text
    assert (ROOT / spell.annotations["runbook_url"]).is_file(), spell
