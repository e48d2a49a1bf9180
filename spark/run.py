"""One run: check and total a landed cut, and write the report.

Invariant: a run is a function of its manifest and of the lake. Over a cut it starts from the state that the run over
the cut before left; over joined cuts it starts from nothing. What is new and what was carried is compared with its
digests first; `spark.audit` compares the history every week.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession

from spark import balances, register
from spark import totals as ledger
from spark.checks import ALL
from spark.lake import Lake, LakeError
from spark.manifest import Manifest, joined
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
from spark.runs import CARRY, Run, Runs
from spark.session import shuffle_partitions

Progress = Callable[[str], None]
Stages = MutableMapping[str, float]
"""Seconds by stage."""
Check = Callable[[Night], Checked]
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
    stages: Stages | None = None,
    progress: Progress,
) -> Report:
    """Make the run over a landed cut, or over joined ones, and keep it in the lake.

    Hold the lake's lock meanwhile. The session's cache is cleared on the way.

    Args:
        manifest: a cut whose run before is complete, or all cuts up to one, joined.
        listed_max: how many breaks the report lists; all are counted, and all are in the run's folder.
        stages: gets the seconds of each stage.
        progress: takes a line for people after each stage.

    Raises:
        TotalsError: sums of the same movements differ.
        LakeError: a file is gone or altered, an earlier cut or run is missing, or an earlier run had another result.
    """
    stage = partial(_stage, {} if stages is None else stages, progress)
    new, history = covered(lake.cuts(), manifest)
    stage("verify", "verified the landed files", partial(lake.verify, new, strays=False))
    runs = Runs(lake)
    parts = [lake.landed(cut) for cut in new]
    lost = Counter[tuple[str, int]]()
    for topic, partition, count in (one for part in parts for one in part.counted):
        lost[topic, partition] += count.lost or 0
    rows = Counter[str]()
    for part in parts:
        rows.update(part.rows)
    before = runs.carried(spark, history[-1]) if history else None
    run, gathered = runs.begin(manifest), _Gathered()
    night = Night(
        spark=spark,
        manifest=manifest,
        new=lambda table: lake.read(spark, table, new),
        history=lambda table, bounds=None: lake.read(spark, table, history, bounds=bounds),
        carried=before.table if before is not None else lambda _: None,
        few_carried=before.few if before is not None else lambda _: None,
        landed=rows,
        keep=run.keep,
        new_cuts=new,
        lost=lost,
        history_cuts=history,
        late_cut=first_late(manifest, [*history, *new]),
    )
    partitions = shuffle_partitions(rows.total(), spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    gathered.add({"unknown_fields": sum(one.records for part in parts for one in part.unknown.values())}, {})
    for name in ALL:
        stage(f"check:{name}", f"checked {name}", partial(_check, run, gathered, night, name))
    sums = stage("totals", "totalled, and checked balances", partial(_sum, run, gathered, night))
    known_breaks = night.carried(register.NAME)
    if before is not None and not before.has(register.NAME):
        known_breaks = register.of_former_version(spark, runs, history)
    known = register.read_explanations(lake.root, manifest.explanations)
    breaks = stage(
        "register",
        "updated the register",
        partial(_breaks, run, night, known_breaks, all_breaks(gathered.breaks), known, listed_max),
    )
    spark.catalog.clearCache()
    run.write_few(gathered.few)
    report = report_of(manifest, gathered.figures, gathered.in_flight, breaks, sums)
    stage("publish", "wrote the report", lambda: run.publish(report, render(report)))
    return report


def covered(cuts: Sequence[Manifest], manifest: Manifest) -> tuple[list[Manifest], list[Manifest]]:
    """Return the cuts that a run reads as new, and those that are its history.

    Raises LakeError if the manifest is neither one of the landed cuts nor the first ones joined.
    """
    before = [cut for cut in cuts if cut.sequence <= manifest.sequence]
    if manifest.previous and manifest in before:
        return [manifest], before[:-1]
    if before and joined(before) == manifest:
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


def _stage(stages: Stages, progress: Progress, name: str, done: str, work: "Callable[[], Result]") -> "Result":
    begun_s = time.monotonic()
    result = work()
    stages[name] = time.monotonic() - begun_s
    progress(f"{done} in {stages[name]:.1f} s")
    return result


Result = TypeVar("Result")


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
    return register.open_breaks(spark, every, explanations, listed_max)


def _rows(rows: Iterable[msgspec.Struct], kind: type[Line]) -> tuple[Line, ...]:
    """Return rows as the report has them: amounts become decimals, which JSON keeps whatever their size."""
    return tuple(kind(**_decimals(msgspec.structs.asdict(row))) for row in rows)


def _decimals(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: Decimal(value) if name.endswith("_minor") else value for name, value in fields.items()}
