"""Circuit breakers: a destination that fails again and again is left alone for a while. Pure; seconds come in.

Closed, calls go through. After some failures in a row it opens and none does. When its time is over, one call tries;
the others wait for what becomes of it.
"""

from dataclasses import dataclass

CIRCUITS_MAX = 10_000
"""Failing destinations remembered; with more, the one known longest is forgotten."""


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    opens_at_s: float = 0.0


class Circuits:
    """One breaker for each name.

    Args:
        failures_max: in a row, until it opens.
        open_s: how long it stays open, and how long a trial may take.
    """

    def __init__(self, failures_max: int, open_s: float) -> None:
        self._failures_max = failures_max
        self._open_s = open_s
        self._circuits: dict[str, _Circuit] = {}

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until this destination may be called; 0 is now. Asks only."""
        circuit = self._circuits.get(name)
        return 0.0 if circuit is None else max(circuit.opens_at_s - now_s, 0.0)

    def enter_s(self, name: str, now_s: float) -> float:
        """As `wait_s`; where a trial is due, whoever asks first has it, and the others wait."""
        circuit = self._circuits.get(name)
        if circuit is None:
            return 0.0
        wait_s = max(circuit.opens_at_s - now_s, 0.0)
        if wait_s == 0 and circuit.failures >= self._failures_max:
            circuit.opens_at_s = now_s + self._open_s
        return wait_s

    def succeeded(self, name: str) -> None:
        """It answered, whatever it said."""
        self._circuits.pop(name, None)

    def failed(self, name: str, now_s: float, retry_after_s: float | None = None) -> None:
        """It did not take a call.

        Args:
            name: of the circuit.
            now_s: monotonic seconds.
            retry_after_s: for how long it asked to be left alone.
        """
        circuit = self._circuits.get(name)
        if circuit is None:
            self._forget()
            circuit = self._circuits[name] = _Circuit()
        circuit.failures += 1
        if circuit.failures >= self._failures_max:
            circuit.opens_at_s = max(circuit.opens_at_s, now_s + self._open_s)
        if retry_after_s is not None:
            circuit.opens_at_s = max(circuit.opens_at_s, now_s + retry_after_s)

    def open_count(self, now_s: float) -> int:
        """How many are open."""
        return sum(circuit.opens_at_s > now_s for circuit in self._circuits.values())

    def _forget(self) -> None:
        if len(self._circuits) >= CIRCUITS_MAX:
            oldest = next(iter(self._circuits))
            del self._circuits[oldest]
