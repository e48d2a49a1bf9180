"""The demonstration's second opinion: the same topics reconciled in Spark, and compared with the verifier's figures.

Invariant: the two share no code but the event schemas and the topic catalogue, so a figure that both have, and have
alike, was counted twice. Spark's start takes seconds, so it begins while the pipeline still drains.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from deploy.checkers.verdict import Verdict
from deploy.reconciliation import Request, choose_cut, reconcile_cut, spark_session
from shared.kafka.client.access import Bootstrap
from shared.settings import ReconcileSettings
from spark.lake import Lake
from spark.report import CLEAN, Currency, Report

_MEMORY = "2g"
_SETTLE_S = 60.0  # all is drained: a machine that is slow is waited for

COMPARED = {
    "records_in": "records_in",
    "accepted": "accepted",
    "deduplicated": "deduplicated",
    "dead_lettered": "dead_lettered",
    "postings": "postings",
    "declines": "declines",
    "effects_requested": "effects_requested",
    "effects_delivered": "effects_sent",
    "effects_in_doubt": "effects_in_doubt",
    "effects_failed": "effects_failed",
}
"""Figures that both have: the verifier's name, and the report's."""

Say = Callable[[str], None]


class Reconciled(msgspec.Struct, frozen=True):
    """Result of the reconciliation.

    Attributes:
        verdict: clean or breaks.
        breaks: how many, and `breaks_by_kind` of what kinds.
        settled: whether nothing was under way at the cut.
        manifest: digest of the cut's manifest.
        figures: counts, by the report's names.
        in_flight: records under way, by what they wait for.
        currencies: totals of each.
        balances: digest of all balances.
    """

    verdict: str
    breaks: int
    breaks_by_kind: dict[str, int]
    settled: bool
    manifest: str
    figures: dict[str, int]
    in_flight: dict[str, int]
    currencies: tuple[Currency, ...]
    balances: str


def reconciled(report: Report) -> Reconciled:
    """A report, as the demonstration shows it. Pure."""
    return Reconciled(
        verdict=report.verdict,
        breaks=report.breaks.total,
        breaks_by_kind=report.breaks.by_kind,
        settled=report.cut.settled,
        manifest=report.cut.digest,
        figures=report.figures,
        in_flight=report.in_flight,
        currencies=report.totals.currencies,
        balances=report.totals.digest,
    )


def disagreements(verdict: Verdict, found: Reconciled) -> list[str]:
    """Describe where the two differ, and what Spark found wrong. Pure."""
    missing = []
    if found.verdict != CLEAN:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.breaks_by_kind.items() if count)
        missing.append(f"the reconciliation found {found.breaks} breaks: {kinds}")
    missing += [f"{count} records were in flight to {name}" for name, count in found.in_flight.items() if count]
    for name, other in COMPARED.items():
        verified, counted = getattr(verdict, name), found.figures.get(other)
        if verified != counted:
            missing.append(f"{name} is {verified} to the verifier and {counted} to Spark")
    return missing


class Reconciling:
    """Spark, started or starting."""

    def __init__(self, starting: "asyncio.Task[SparkSession]", directory: Path) -> None:
        self._starting = starting
        self._lake = Lake(directory)

    async def reconcile(self, bootstrap_servers: Bootstrap, say: Say) -> Reconciled:
        """Take a cut, land it and reconcile it.

        Raises:
            LakeError, KafkaUnavailableError, PySparkException: see `deploy.reconciliation.reconcile_cut`.
        """
        return reconciled(await asyncio.to_thread(self._run, await self._starting, bootstrap_servers, say))

    def _run(self, spark: SparkSession, bootstrap_servers: Bootstrap, say: Say) -> Report:
        request = Request(settle_deadline_s=_SETTLE_S)
        with self._lake.lock():
            cut = choose_cut(self._lake, bootstrap_servers, request)
            return reconcile_cut(spark, self._lake, bootstrap_servers, cut, request, say=say)[-1]


@asynccontextmanager
async def reconciling(directory: Path) -> AsyncIterator[Reconciling]:
    """Start Spark without waiting for it; it is stopped at the end.

    Args:
        directory: for the lake.
    """
    with ExitStack() as opened:

        def start() -> SparkSession:
            return opened.enter_context(spark_session(ReconcileSettings(spark_memory=_MEMORY), directory))

        starting = asyncio.create_task(asyncio.to_thread(start))
        try:
            yield Reconciling(starting, directory)
        finally:
            # Whatever became of it: what was begun in its thread must be there to be closed
            await asyncio.wait([starting])
            starting.exception()
