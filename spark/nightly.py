"""A night's work: land the cut, backfill missing runs, and make the run: check and total it, and write the report.

Invariant: a run is a function of its manifest and of the lake. Over a cut it starts from the state that the run over
the cut before left, so a run that was missed or killed is made first. Over joined cuts it starts from nothing, needs
none before it, and takes the place of none. What is new and what was carried is compared with its digests first;
`spark.audit` compares the history every week.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession

from spark import balances, register
from spark import totals as ledger
from spark.audit import audit_when_due
from spark.checks import ALL, check_lost
from spark.lake import Lake, LakeError
from spark.land import Uncovered, land
from spark.manifest import Manifest, joined
from spark.metrics import Progress
from spark.night import BREAKS, Checked, Few, Kind, Night, all_breaks, frame
from spark.page import render
from spark.register import Explanation
from spark.report import (
    LISTED_MAX,
    Breaks,
    Currency,
    House,
    Report,
    Totals,
    breaks_of,
    report_of,
)
from spark.runs import CARRY, Carried, Run, Runs
from spark.session import Brokers, shuffle_partitions


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
        replace: set a damaged run over this manifest aside, and make it again, or make a lost one. The same code must
            give the same report. The lake is not audited first.
        runs_max: how many runs are made at most, the oldest first, at least 1; None is no bound.
        now_ms: milliseconds since 1970 UTC. The whole lake is audited first if it was not for a week; None never does.
        uncovered: see `spark.land.land`.

    Raises:
        LakeError, ManifestError: see `spark.land.land`, `reconcile` and `spark.audit.audit_when_due`.
    """
    runs = Runs(lake)
    if replace and (fault := runs.set_aside(manifest)) is not None:
        progress.say(f"replacing a damaged run: {fault}")
    if now_ms is not None and not replace:
        with progress.stage("audit"):
            audit_when_due(lake, now_ms, progress.say)
    if not is_landed(lake.cuts(), manifest):
        if brokers is None:
            raise LakeError(f"cut {manifest.cut_id} has not landed in {lake.root}: name the brokers to land it from")
        land(spark, manifest, brokers, lake, progress, uncovered)
    all_due = due(lake.cuts(), manifest, lambda cut: runs.record(cut) is not None, full=full)
    wanted = all_due[:runs_max]
    reports: list[Report] = []
    begun_s = time.monotonic()
    for number, one in enumerate(wanted, 1):
        left_s = time_left_s(time.monotonic() - begun_s, number, len(wanted))
        progress.say(progress_text(number, len(all_due), one, left_s))
        reports.append(reconcile(spark, lake, one, listed_max=listed_max, progress=progress))
        progress.made(reports[-1])
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


Line = TypeVar("Line", bound=msgspec.Struct)

_FOUND: Final = "breaks/all"
LATE_MIN_MS: Final = 3_600_000
"""Cuts may follow one another within seconds, and a backlog of an hour is no break."""


@dataclass
class _Gathered:
    figures: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    breaks: list[DataFrame] = field(default_factory=list)
    few: dict[str, Few] = field(default_factory=dict)

    def add(self, figures: dict[str, int], in_flight: dict[str, int]) -> None:
        """Add the counts of one check. Of one name, the first counts: two may differ by a break."""
        for name, count in figures.items():
            self.figures.setdefault(name, count)
        for name, count in in_flight.items():
            self.in_flight[name] = self.in_flight.get(name, 0) + count


def reconcile(
    spark: SparkSession,
    lake: Lake,
    manifest: Manifest,
    *,
    listed_max: int = LISTED_MAX,
    progress: Progress,
) -> Report:
    """Make the run over a landed cut, or over joined ones, and keep it in the lake.

    Hold the lake's lock meanwhile. The session's cache is cleared on the way.

    Args:
        manifest: a cut whose run before is complete, or all cuts up to one, joined.
        listed_max: how many breaks the report lists; all are counted, and all are in the run's folder.

    Raises:
        TotalsError: sums of the same movements differ.
        LakeError: a file is gone or altered, an earlier cut or run is missing, or an earlier run had another result.
    """
    new, history = covered(lake.cuts(), manifest)
    with progress.stage("verify", "verified the landed files"):
        lake.verify(new, strays=False)
    runs = Runs(lake)
    parts = [lake.landed(cut) for cut in new]
    rows = Counter[str]()
    for part in parts:
        rows.update(part.rows)
    before = runs.carried(spark, history[-1]) if history else Carried(spark, lake.root, {})
    run, gathered = runs.begin(manifest), _Gathered()
    night = Night(
        spark=spark,
        manifest=manifest,
        new=lambda table: lake.read(spark, table, new),
        history=lambda table, bounds: lake.read(spark, table, history, bounds=bounds),
        carried=before.table,
        few_carried=before.few,
        landed=rows,
        compute=run.keep,
        new_cuts=new,
        history_cuts=history,
        late_cut=first_late(manifest, [*history, *new]),
    )
    partitions = shuffle_partitions(rows.total(), spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    gathered.add({"unknown_fields": sum(one.records for part in parts for one in part.unknown.values())}, {})
    _keep(run, gathered, check_lost(spark, zip(new, parts, strict=True)))
    for name in ALL:
        with progress.stage(f"check:{name}", f"checked {name}"):
            _check(run, gathered, night, name)
    with progress.stage("totals", "totalled, and checked balances"):
        sums = _sum(run, gathered, night)
    known_breaks = night.carried(register.NAME)
    if history and not before.has(register.NAME):
        known_breaks = register.of_former_version(spark, runs, history)
    known = register.read_explanations(lake.root, manifest.explanations)
    with progress.stage("register", "updated the register"):
        breaks = _breaks(run, night, known_breaks, all_breaks(gathered.breaks), known, listed_max)
    spark.catalog.clearCache()
    run.write_few(gathered.few)
    report = report_of(manifest, gathered.figures, gathered.in_flight, breaks, sums)
    with progress.stage("publish", "wrote the report"):
        changed = run.publish(report, render(report))
    if changed is not None:
        progress.say(changed)
    return report


def covered(cuts: Sequence[Manifest], manifest: Manifest) -> tuple[list[Manifest], list[Manifest]]:
    """Return the cuts that a run reads as new, and those that are its history.

    Raises LakeError if the manifest is neither one of the landed cuts nor the first ones joined.
    """
    before = [cut for cut in cuts if cut.sequence <= manifest.sequence]
    if manifest.previous and manifest in before:
        return [manifest], before[:-1]
    if _is_joined(cuts, manifest):
        return before, []
    raise LakeError(f"cut {manifest.cut_id} has not landed here, and is not made of cuts that have: land it first")


def first_late(manifest: Manifest, cuts: Sequence[Manifest]) -> Manifest | None:
    """Return the cut whose records are late if they are still in flight; None if none is old enough.

    Args:
        cuts: all up to the manifest's, oldest first.
    """
    old = (
        cut
        for cut in reversed(cuts)
        if cut.sequence <= manifest.sequence - manifest.settings.late_after_cuts
        and cut.taken_at_ms <= manifest.taken_at_ms - LATE_MIN_MS
    )
    return next(old, None)


def _check(run: Run, gathered: _Gathered, night: Night, name: str) -> None:
    """Make one check and write its carried tables. Memory is freed, unless breaks are still to be written."""
    checked = ALL[name](night)
    _keep(run, gathered, checked)
    if checked.breaks is None:
        night.spark.catalog.clearCache()


def _sum(run: Run, gathered: _Gathered, night: Night) -> Totals:
    """Total, and compare the balances with the totals: both use the same small tables."""
    sums = ledger.totals(night)
    gathered.add(sums.figures, {})
    for name, rows in sums.carry.items():
        run.write(f"{CARRY}/{name}", rows)
    for name, rows in sums.tables.items():
        run.write(f"totals/{name}", rows)
    _keep(run, gathered, balances.check(night, sums.currencies))
    return Totals(
        sums.balances_digest,
        _rows(sums.currencies, Currency),
        _rows(sums.houses, House),
        sums.hours,
        sums.value_dates,
        sums.business_days,
        night.manifest.settings.time_zone,
    )


def _keep(run: Run, gathered: _Gathered, checked: Checked) -> None:
    gathered.add(checked.figures, checked.in_flight)
    if checked.breaks is not None:
        gathered.breaks.append(checked.breaks)
    for name, rows in checked.carry.items():
        if isinstance(rows, Few):
            gathered.few[name] = rows
        else:
            run.write(f"{CARRY}/{name}", rows)


def _breaks(
    run: Run,
    night: Night,
    before: DataFrame | None,
    broken: DataFrame | None,
    explanations: Sequence[Explanation],
    listed_max: int,
) -> Breaks:
    """Write what was found and the register, and return the open breaks.

    Args:
        before: the register of the run before; None if it has no row.
        broken: the breaks that the checks found; None without any.
    """
    spark, kinds = night.spark, [kind.value for kind in Kind]
    if broken is None and before is None:
        run.write_none(f"{CARRY}/{register.NAME}", register.REGISTER)
        return breaks_of([], [], kinds, listed_max)
    if broken is None:
        found = frame(spark, BREAKS)
    else:
        run.write(_FOUND, broken)
        found = run.read(spark, [_FOUND], BREAKS)
    run.write(f"{CARRY}/{register.NAME}", register.update(found, before, night.manifest), form="json")
    every = run.read(spark, [f"{CARRY}/{register.NAME}"], register.REGISTER)
    return register.open_breaks(spark, every, explanations, listed_max, dated=bool(night.manifest.previous))


def _rows(rows: Iterable[msgspec.Struct], kind: type[Line]) -> tuple[Line, ...]:
    """Return rows as the report has them: amounts become decimals, which JSON keeps whatever their size."""
    return tuple(kind(**_decimals(msgspec.structs.asdict(row))) for row in rows)


def _decimals(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: Decimal(value) if name.endswith("_minor") else value for name, value in fields.items()}
