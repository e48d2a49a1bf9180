"""A night's work: land the cut, make up for missing runs, and make the run.

Invariant: a cut's run starts from the complete run over the cut before it, so a run that was missed or killed is made
first. A run over joined cuts needs none before it.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from spark.audit import audit_when_due
from spark.lake import Lake, LakeError
from spark.land import Uncovered, land
from spark.manifest import Manifest, joined
from spark.report import LISTED_MAX, Report
from spark.run import Progress, reconcile
from spark.runs import Runs
from spark.source import Brokers


def work(
    spark: SparkSession,
    lake: Lake,
    manifest: Manifest,
    brokers: Brokers | None,
    *,
    full: bool = False,
    listed_max: int = LISTED_MAX,
    replace: bool = False,
    now_ms: int | None = None,
    uncovered: Uncovered | None = None,
    progress: Progress,
) -> list[Report]:
    """Make all runs that are due up to this manifest, its own included, which is made again if it was made before.

    Hold the lake's lock meanwhile.

    Args:
        spark: with the jars of Spark's Kafka source unless the cut has landed.
        manifest: a landed cut, one that follows the last landed one, or the first cuts joined.
        brokers: needed for a cut that has not landed.
        full: make one run over all cuts up to it, instead of its own.
        listed_max: how many breaks a report lists.
        replace: set a damaged run over this manifest aside, and make it again. It must have the same report.
        now_ms: milliseconds since 1970 UTC. The whole lake is audited first if it was not for a week; None never does.
        uncovered: see `spark.land.land`.
        progress: takes a line for people after each stage.

    Returns:
        A report for each run made, in their order; the last is the manifest's.

    Raises:
        LakeError, ManifestError: see `spark.land.land`, `spark.run.reconcile` and `spark.audit.audit_when_due`.
    """
    runs = Runs(lake)
    if replace and (fault := runs.set_aside(manifest)) is not None:
        progress(f"replacing a damaged run: {fault}")
    if now_ms is not None and not replace:
        audit_when_due(lake, now_ms, progress)
    if not is_landed(lake.cuts(), manifest):
        if brokers is None:
            raise LakeError(f"cut {manifest.cut_id} has not landed in {lake.root}: name the brokers to land it from")
        land(spark, manifest, brokers, lake, progress, uncovered)
    reports = []
    for one in due(lake.cuts(), manifest, lambda cut: runs.record(cut) is not None, full=full):
        progress(f"reconciling cut {one.cut_id}")
        reports.append(reconcile(spark, lake, one, listed_max=listed_max, progress=progress))
    return reports


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
