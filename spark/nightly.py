"""A night's work: land the cut, backfill missing runs, and make the run.

Invariant: a cut's run starts from the complete run over the cut before it, so a run that was missed or killed is made
first. A run over joined cuts needs none before it, and takes the place of none.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark.audit import audit_when_due
from spark.lake import Lake, LakeError
from spark.land import Uncovered, land
from spark.manifest import Manifest, joined
from spark.report import LISTED_MAX, Report
from spark.run import Progress, Stages, reconcile
from spark.runs import Runs
from spark.session import Brokers

Made = Callable[[Report], None]


class Work(NamedTuple):
    """The runs that were made."""

    reports: list[Report]  # one for each run, in their order
    left: int  # runs that are still due, the last of them the request's


def work(
    spark: SparkSession,
    lake: Lake,
    manifest: Manifest,
    brokers: Brokers | None,
    *,
    full: bool = False,
    listed_max: int = LISTED_MAX,
    replace: bool = False,
    runs_max: int | None = None,
    now_ms: int | None = None,
    uncovered: Uncovered | None = None,
    stages: Stages | None = None,
    made: Made = lambda _: None,
    progress: Progress,
) -> Work:
    """Make the runs that are due up to this manifest, its own included, which is made again if it was made before.

    Hold the lake's lock meanwhile.

    Args:
        spark: with the jars of Spark's Kafka source unless the cut has landed.
        manifest: a landed cut, one that follows the last landed one, or the first cuts joined.
        brokers: needed for a cut that has not landed.
        full: make one run over all cuts up to it, instead of its own.
        listed_max: how many breaks a report lists.
        replace: set a damaged run over this manifest aside, and make it again. It must have the same report.
        runs_max: how many runs are made at most, the oldest first, at least 1; None is no bound.
        now_ms: milliseconds since 1970 UTC. The whole lake is audited first if it was not for a week; None never does.
        uncovered: see `spark.land.land`.
        stages: gets the seconds of each stage; of several runs, those of the last.
        made: takes the report of each run when it is complete, before the next one begins.
        progress: takes a line for people before each run and after each stage.

    Raises:
        LakeError, ManifestError: see `spark.land.land`, `spark.run.reconcile` and `spark.audit.audit_when_due`.
    """
    runs = Runs(lake)
    if replace and (fault := runs.set_aside(manifest)) is not None:
        progress(f"replacing a damaged run: {fault}")
    seconds = {} if stages is None else stages
    if now_ms is not None and not replace:
        begun_s = time.monotonic()
        audit_when_due(lake, now_ms, progress)
        seconds["audit"] = time.monotonic() - begun_s
    if not is_landed(lake.cuts(), manifest):
        if brokers is None:
            raise LakeError(f"cut {manifest.cut_id} has not landed in {lake.root}: name the brokers to land it from")
        land(spark, manifest, brokers, lake, progress, uncovered, seconds)
    all_due = due(lake.cuts(), manifest, lambda cut: runs.record(cut) is not None, full=full)
    wanted = all_due[:runs_max]
    reports: list[Report] = []
    begun_s = time.monotonic()
    for number, one in enumerate(wanted, 1):
        progress(progress_text(number, len(all_due), one, time_left_s(time.monotonic() - begun_s, number, len(wanted))))
        reports.append(reconcile(spark, lake, one, listed_max=listed_max, stages=seconds, progress=progress))
        made(reports[-1])
    return Work(reports, len(all_due) - len(wanted))


def time_left_s(elapsed_s: float, number: int, runs: int) -> float | None:
    """Return how long runs will take from the one with this number on, by the mean of those before; None for the first.

    Pure.
    """
    return None if number == 1 else elapsed_s / (number - 1) * (runs - number + 1)


def progress_text(number: int, runs: int, manifest: Manifest, left_s: float | None) -> str:
    """Return a line about a run that begins. Pure."""
    if runs == 1:
        return f"reconciling cut {manifest.cut_id}"
    if left_s is None:
        return f"run {number} of {runs}, cut {manifest.cut_id}"
    left = f"{left_s / 60:.0f} min" if left_s >= _MINUTES_FROM_S else f"{max(left_s, 1):.0f} s"
    return f"run {number} of {runs}, cut {manifest.cut_id}, about {left} left"


_MINUTES_FROM_S = 90


def is_landed(cuts: Sequence[Manifest], manifest: Manifest) -> bool:
    """Whether a manifest is one of the landed cuts, or the first of them joined."""
    return manifest in cuts or _is_joined(cuts, manifest)


def due(
    cuts: Sequence[Manifest], manifest: Manifest, complete: Callable[[Manifest], bool], *, full: bool = False
) -> list[Manifest]:
    """Return the runs to be made, the manifest's own last.

    Args:
        cuts: all that have landed.
        manifest: one of them, or the first of them joined.
        complete: whether there is a complete run over a cut.
        full: one run over all cuts up to it, instead of its own.
    """
    up_to = [cut for cut in cuts if cut.sequence <= manifest.sequence]
    if full or _is_joined(cuts, manifest):
        return [joined(up_to)]
    missing = [manifest]
    for cut in reversed(up_to[:-1]):
        if complete(cut):
            break
        missing.append(cut)
    return missing[::-1]


def _is_joined(cuts: Sequence[Manifest], manifest: Manifest) -> bool:
    up_to = [cut for cut in cuts if cut.sequence <= manifest.sequence]
    return bool(up_to) and joined(up_to) == manifest
