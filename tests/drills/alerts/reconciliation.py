"""Faults of the nightly reconciliation: the outcomes that it leaves for the monitor, written in its place."""

import time

from shared.events.catalogue import RECONCILIATION_RUNS
from shared.events.operations import RUN_SCHEMA_VERSION, RunOutcome, encode_run_outcome
from shared.events.partitions import partition_for
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site, Written

_DAY_MS = 86_400_000


class Outcome(Fault):
    """An outcome that is not as it should be; then one that is.

    Args:
        cut_id: of the cuts; each fault's own.
        age_days: how long ago it was told. The monitor goes by the youngest: an old one counts before others only.
        breaks: found, by kind.
    """

    def __init__(self, cut_id: str, *, age_days: int = 0, **breaks: int) -> None:
        self._cut_id = cut_id
        self._age_ms = age_days * _DAY_MS
        self._breaks = breaks

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        tell(site, f"{self._cut_id}-bad", self._breaks, self._age_ms)

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        tell(site, f"{self._cut_id}-good", dict.fromkeys(self._breaks, 0))


def tell(site: Site, cut_id: str, breaks: dict[str, int], age_ms: int = 0) -> None:
    """Write what a reconciliation came to.

    Args:
        site: where.
        cut_id: the cut's name.
        breaks: by kind.
        age_ms: how long ago, in milliseconds.
    """
    verdict = "breaks" if any(breaks.values()) else "clean"
    outcome = RunOutcome(RUN_SCHEMA_VERSION, cut_id, "manifest", "report", verdict, False, breaks)
    value, at_ms = encode_run_outcome(outcome), time.time_ns() // 1_000_000 - age_ms
    site.write(RECONCILIATION_RUNS, partition_for(cut_id), [Written(cut_id.encode(), value, (), at_ms)])
