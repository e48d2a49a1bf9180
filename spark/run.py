"""One run: check and total a landed cut, and write the report.

Invariant: a run is a function of its manifest and of the lake. Over a cut it starts from the state that the run over
the cut before left; over joined cuts it starts from nothing. What is new and what was carried is compared with its
digests first; `spark.audit` compares the history every week.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark import balances
from spark import totals as ledger
from spark.checks import ALL
from spark.lake import Lake, LakeError
from spark.manifest import Manifest, joined
from spark.night import BREAKS, Checked, Kind, Night
from spark.page import render
from spark.report import LISTED_MAX, Break, Breaks, Currency, Hour, House, Report, Totals, breaks_of, report_of
from spark.runs import CARRY, Run, Runs
from spark.session import shuffle_partitions

Progress = Callable[[str], None]
Check = Callable[[Night], Checked]
Row = TypeVar("Row", bound=msgspec.Struct)

BALANCES: Final = "balances"


@dataclass
class _Gathered:
    figures: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)

    def add(self, figures: dict[str, int], in_flight: dict[str, int]) -> None:
        """Add the counts of one check. Of one name, the first counts: two may differ by a break."""
        for name, count in figures.items():
            self.figures.setdefault(name, count)
        for name, count in in_flight.items():
            self.in_flight[name] = self.in_flight.get(name, 0) + count


def reconcile(
    spark: SparkSession, lake: Lake, manifest: Manifest, *, listed_max: int = LISTED_MAX, progress: Progress
) -> Report:
    """Make the run over a landed cut, or over joined ones, and keep it in the lake.

    Hold the lake's lock meanwhile. The session's cache is cleared on the way.

    Args:
        manifest: a cut whose run before is complete, or all cuts up to one, joined.
        listed_max: how many breaks the report lists; all are counted, and all are in the run's folder.
        progress: takes a line for people after each stage.

    Raises:
        LakeError: a file is gone or altered, an earlier cut or run is missing, or an earlier run had another result.
    """
    new, history = covered(lake.cuts(), manifest)
    _stage(progress, "verified the landed files", partial(lake.verify, new, strays=False))
    runs = Runs(lake)
    night = Night(
        spark=spark,
        manifest=manifest,
        new=lambda table: lake.read(spark, table, new),
        history=lambda table: lake.read(spark, table, history),
        carried=runs.carried(spark, history[-1]) if history else lambda _: None,
    )
    rows = sum(sum(lake.landed(cut).rows.values()) for cut in new)
    partitions = shuffle_partitions(rows, spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    run, gathered = runs.begin(manifest), _Gathered()
    checks = [_stage(progress, f"checked {name}", partial(_check, run, gathered, night, name)) for name in ALL]
    sums = _stage(progress, "totalled, and checked balances", partial(_sum, run, gathered, night))
    breaks = _breaks(run, spark, [*checks, BALANCES], listed_max)
    report = report_of(manifest, gathered.figures, gathered.in_flight, breaks, sums)
    run.publish(report, render(report))
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


def _stage(progress: Progress, done: str, work: "Callable[[], Result]") -> "Result":
    begun = time.monotonic()
    result = work()
    progress(f"{done} in {time.monotonic() - begun:.1f} s")
    return result


Result = TypeVar("Result")


def _check(run: Run, gathered: _Gathered, night: Night, name: str) -> str:
    """Make one check and write all of its tables; then nothing of it is kept in memory."""
    _keep(run, gathered, name, ALL[name](night))
    night.spark.catalog.clearCache()
    return name


def _sum(run: Run, gathered: _Gathered, night: Night) -> Totals:
    """Total, and compare the balances with the totals: both use the same small tables."""
    sums = ledger.totals(night)
    gathered.add(sums.figures, {})
    for name, rows in sums.carry.items():
        run.write(f"{CARRY}/{name}", rows)
    run.write("totals/account_days", sums.account_days)
    run.write("totals/hours", sums.hours)
    _keep(run, gathered, BALANCES, balances.check(night))
    night.spark.catalog.clearCache()
    return Totals(
        sums.balances_digest,
        _rows(sums.currencies, Currency),
        _rows(sums.houses, House),
        _rows(sums.volume, Hour),
    )


def _keep(run: Run, gathered: _Gathered, name: str, checked: Checked) -> None:
    gathered.add(checked.figures, checked.in_flight)
    run.write(f"breaks/{name}", checked.breaks)
    for carried, rows in checked.carry.items():
        run.write(f"{CARRY}/{carried}", rows)


def _breaks(run: Run, spark: SparkSession, checks: list[str], listed_max: int) -> Breaks:
    found: DataFrame = run.read(spark, [f"breaks/{name}" for name in checks], BREAKS)
    counted = found.groupBy("kind", "check").agg(F.count(F.lit(1)).alias("breaks")).collect()
    # Nulls come first, as in the report's own order
    order = ("kind", "topic", "partition", "offset", "check", "payment_id", "detail")
    first = found.orderBy(*order).limit(listed_max).collect() if counted else []
    counts = ((row["kind"], row["check"], row["breaks"]) for row in counted)
    listed = (Break(**row.asDict()) for row in first)
    return breaks_of(counts, listed, [kind.value for kind in Kind], listed_max)


def _rows(rows: Iterable[msgspec.Struct], kind: type[Row]) -> tuple[Row, ...]:
    """Return rows as the report has them: amounts become decimals, which JSON keeps whatever their size."""
    return tuple(kind(**_decimals(msgspec.structs.asdict(row))) for row in rows)


def _decimals(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: Decimal(value) if name.endswith("_minor") else value for name, value in fields.items()}
