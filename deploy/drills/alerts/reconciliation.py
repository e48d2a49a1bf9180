"""Faults of the nightly reconciliation: the outcomes that it leaves for the monitor, written in its place."""

import time

from deploy.drills.alerts.site import PARTITIONS, Site, Written
from shared.events.catalogue import RECONCILIATION_RUNS
from shared.events.operations import RUN_SCHEMA_VERSION, RunOutcome, encode_run_outcome
from shared.events.partitions import partition_for

_DAY_MS = 86_400_000


class Outcome:
    """A bad outcome; then a good one.

    Args:
        cut_id: prefix of the cuts' names, unique to the fault.
        age_days: its age. The monitor uses the youngest: an old one counts only before others.
        breaks: found, by kind.
    """

    def __init__(self, cut_id: str, *, age_days: int = 0, **breaks: int) -> None:
        self._cut_id = cut_id
        self._age_ms = age_days * _DAY_MS
        self._breaks = breaks

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await write_outcome(site, f"{self._cut_id}-bad", self._breaks, self._age_ms)
        return f"the outcome of cut {self._cut_id}-bad is written"

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await write_outcome(site, f"{self._cut_id}-good", dict.fromkeys(self._breaks, 0))


async def write_outcome(site: Site, cut_id: str, breaks: dict[str, int], age_ms: int = 0) -> None:
    """Write the outcome of a reconciliation.

    Args:
        site: where.
        cut_id: the cut's name.
        breaks: by kind.
        age_ms: its age in milliseconds.
    """
    at_ms = time.time_ns() // 1_000_000 - age_ms
    verdict, oldest_at_ms, at_risk_minor = "clean", None, {}
    if any(breaks.values()):
        verdict, oldest_at_ms, at_risk_minor = "breaks", at_ms, {"EUR": "1000"}
    outcome = RunOutcome(
        *(RUN_SCHEMA_VERSION, cut_id, "manifest", "report", verdict, False, breaks),
        oldest_at_ms=oldest_at_ms,
        at_risk_minor=at_risk_minor,
    )
    record = Written(cut_id.encode(), encode_run_outcome(outcome), (), at_ms)
    await site.write(RECONCILIATION_RUNS, partition_for(cut_id, PARTITIONS), [record])
