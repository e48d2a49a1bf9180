"""Firing times of each alert, as Prometheus reports them, and the thread that polls it.

Invariant: a Prometheus that does not answer changes nothing. It must not know what the alerts mean.
"""

import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from deploy.drills.prometheus import Alert, Prometheus, PrometheusError

POLL_S = 0.25
FIRING = "firing"

Key = frozenset[tuple[str, str]]


@dataclass
class Spell:
    """One alert, from firing to its end.

    Attributes:
        labels, annotations: as it had them when it began to fire.
        begun_s, ended_s: seconds by time.monotonic(); the end is None while it fires.
    """

    labels: dict[str, str]
    annotations: dict[str, str]
    begun_s: float
    ended_s: float | None = None


class Timeline:
    """The alerts seen so far. Pure; not thread-safe."""

    def __init__(self) -> None:
        self.spells: list[Spell] = []
        self._open: dict[Key, Spell] = {}
        self._present: list[dict[str, str]] = []

    def note(self, alerts: Iterable[Alert], now_s: float) -> None:
        """Add Prometheus' present alerts, pending ones included."""
        seen = list(alerts)
        self._present = [alert.labels for alert in seen]
        firing = {frozenset(alert.labels.items()): alert for alert in seen if alert.state == FIRING}
        for key in self._open.keys() - firing.keys():
            self._open.pop(key).ended_s = now_s
        for key in firing.keys() - self._open.keys():
            spell = Spell(firing[key].labels, firing[key].annotations, now_s)
            self._open[key] = spell
            self.spells.append(spell)

    def quiet(self, alert: str, labels: Mapping[str, str]) -> bool:
        """Whether no such alert is pending or firing."""
        return not any(_fits(found, alert, labels) for found in self._present)

    def first(self, alert: str, labels: Mapping[str, str], since_s: float) -> Spell | None:
        """The first such spell that began then or later."""
        return next((spell for spell in self._such(alert, labels) if spell.begun_s >= since_s), None)

    def silent_from(self, alert: str, labels: Mapping[str, str], since_s: float) -> float | None:
        """The first time from then on without such an alert firing; None if there was none yet."""
        at_s = since_s
        for spell in self._such(alert, labels):  # in the order of their beginnings
            if spell.begun_s > at_s:
                break
            if spell.ended_s is None:
                return None
            at_s = max(at_s, spell.ended_s)
        return at_s

    def _such(self, alert: str, labels: Mapping[str, str]) -> list[Spell]:
        return [spell for spell in self.spells if _fits(spell.labels, alert, labels)]


def _fits(found: Mapping[str, str], alert: str, labels: Mapping[str, str]) -> bool:
    return found["alertname"] == alert and all(
        re.fullmatch(pattern, found.get(name, "")) for name, pattern in labels.items()
    )


class Watch:
    """Polls Prometheus' alerts from a thread while its context is open.

    Args:
        prometheus: whose.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._timeline = Timeline()
        self._lock = threading.Lock()
        self._asked_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def quiet(self, alert: str, labels: Mapping[str, str], since_s: float) -> bool:
        """As `Timeline.quiet`, by an answer to a request of then or later; False as long as there is none."""
        with self._lock:
            return self._asked_s >= since_s and self._timeline.quiet(alert, labels)

    def first(self, alert: str, labels: Mapping[str, str], since_s: float) -> Spell | None:
        """As `Timeline.first`."""
        with self._lock:
            return self._timeline.first(alert, labels, since_s)

    def silent_from(self, alert: str, labels: Mapping[str, str], since_s: float) -> float | None:
        """As `Timeline.silent_from`."""
        with self._lock:
            return self._timeline.silent_from(alert, labels, since_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(POLL_S):
            asked_s = time.monotonic()
            try:
                alerts = self._prometheus.alerts()
            except PrometheusError:
                continue
            with self._lock:
                self._timeline.note(alerts, time.monotonic())
                self._asked_s = asked_s
