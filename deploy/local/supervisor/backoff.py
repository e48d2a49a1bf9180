"""Delays before a process that ended is started again. Pure: time comes in as an argument."""

FIRST_DELAY_S = 0.2
DELAY_S_MAX = 10.0
GOOD_RUN_S = 30.0
EXIT_CONFIG = 78
"""EX_CONFIG of sysexits.h: a setting was refused, and starting again would not help."""


class Backoff:
    """Delays that double from 0.2 s to 10 s, and start over once a run has lasted 30 s."""

    def __init__(self) -> None:
        self._delay_s = FIRST_DELAY_S

    def next_delay_s(self, ran_s: float) -> float:
        """The seconds to wait after a run of `ran_s` seconds has ended."""
        if ran_s >= GOOD_RUN_S:
            self._delay_s = FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_S_MAX)
        return delay_s


def may_restart(exit_code: int) -> bool:
    """Whether a process that ended so is started again; all are, but for a refused setting."""
    return exit_code != EXIT_CONFIG
