"""The demonstration's second and third opinion: Spark and the view, compared with the verifier's figures (I12).

Invariant: verifier, Spark and view share no code but the event schemas and the topic catalogue, so a figure that they
have alike was counted with code of each. The view is asked over HTTP, and only once it has read all that was committed.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from deploy.checkers.verdict import Verdict
from deploy.cut import DEFAULTS
from deploy.reconciliation import Request, choose_cut, reconcile_cut, spark_session
from shared.kafka.client.access import Bootstrap
from shared.settings import ReconcileSettings
from spark.lake import Lake
from spark.manifest import Settings
from spark.report import CLEAN, Currency, Report

_MEMORY = "2g"
_SETTLE_S = 60.0  # all is drained: a machine that is slow is waited for
CAUGHT_UP_S = 120.0
_POLL_S = 0.2
_TIMEOUT_S = 10.0

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
        manifest: digest of the cut's manifest.
        figures: counts, by the report's names.
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
    def __init__(self, starting: "asyncio.Task[SparkSession]", directory: Path) -> None:
        self._starting = starting
        self._lake = Lake(directory)

    async def reconcile(self, bootstrap_servers: Bootstrap, say: Say, settings: Settings = DEFAULTS) -> Reconciled:
        """Take a cut, land it and reconcile it; raises as `reconcile_cut`.

        Args:
            settings: for the cut's manifest.
        """
        return reconciled(await asyncio.to_thread(self._run, await self._starting, bootstrap_servers, say, settings))

    def _run(self, spark: SparkSession, bootstrap_servers: Bootstrap, say: Say, settings: Settings) -> Report:
        request = Request(settle_deadline_s=_SETTLE_S)
        with self._lake.lock():
            cut = choose_cut(self._lake, bootstrap_servers, request, settings)
            return reconcile_cut(spark, self._lake, bootstrap_servers, cut, request, say=say).reports[-1]


@asynccontextmanager
async def reconciling(directory: Path) -> AsyncIterator[Reconciling]:
    """Start Spark without waiting for it, while the pipeline still drains; it is stopped at the end."""
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


class ViewBehindError(RuntimeError):
    """The view did not read all postings in time, or did not answer; the message has its last answer."""


class Viewed(msgspec.Struct, frozen=True):
    """Figures of the view.

    Attributes:
        caught_up_s: seconds of waiting for it after the others had their figures.
        balances: digest of all balances that are not 0, as the verifier and Spark make it.
        next_offsets: how far it had read each partition of ledger.postings.
        currencies: by currency, the sum of all balances and what clients hold, in minor units.
    """

    caught_up_s: float
    balances: str
    next_offsets: dict[int, int]
    currencies: dict[str, tuple[int, int]]


async def view(endpoint: str, deadline_s: float = CAUGHT_UP_S) -> Viewed:
    """Wait until the view at `endpoint` has caught up, and ask for its totals.

    Raises:
        ViewBehindError: not in time.
    """
    begun, answer = time.monotonic(), "none"
    while True:
        try:
            found = await asyncio.to_thread(_get, f"{endpoint}/api/freshness")
            answer = json.dumps(found)
            if found["caught_up"]:
                break
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            answer = str(error)
        if time.monotonic() - begun > deadline_s:
            raise ViewBehindError(f"the view has not caught up after {deadline_s:g} s; last answer: {answer}")
        await asyncio.sleep(_POLL_S)
    waited_s = round(time.monotonic() - begun, 1)
    digest = await asyncio.to_thread(_get, f"{endpoint}/api/digest")
    totals = await asyncio.to_thread(_get, f"{endpoint}/api/totals")
    return Viewed(
        waited_s,
        digest["digest"],
        {one["partition"]: one["next_offset"] for one in digest["as_of"]},
        {
            one["currency"]: (int(one["sum_minor"]), int(one["clients"]["balance_minor"]))
            for one in totals["currencies"]
        },
    )


def differences(viewed: Viewed, verdict: Verdict, reconciliation: Reconciled) -> list[str]:
    """Describe where the view differs from the verifier or Spark. Pure."""
    others = {"the verifier": verdict.balances_digest, "Spark": reconciliation.balances}
    missing = [
        f"the view's balances are not those of {name}" for name, digest in others.items() if digest != viewed.balances
    ]
    counted = {
        one.currency: (int(one.closing_minor), int(one.clients_closing_minor)) for one in reconciliation.currencies
    }
    if counted != viewed.currencies:
        missing.append(f"the view's totals are {viewed.currencies}, those of Spark {counted}")
    return missing


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 # an address that the stack gave
        return json.load(answer)
