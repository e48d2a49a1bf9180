"""Reads of earlier cuts by checks: offsets are bound by literals, by which the Parquet reader skips row groups."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shared.events.catalogue import LEDGER_POSTINGS
from spark.checks import ALL
from spark.lake import Lake
from spark.manifest import Manifest
from spark.night import Night
from tests.pipeline.costs import measured
from tests.pipeline.landings import EqualNights, Landings
from tests.pipeline.nights import rows_of
from tests.planted import FILE, MAIL
from tests.tiers import full

DECISIONS = "decisions"
"""The check that reads reference data, which is small, and what decided a record, whenever that was."""
_TABLE = re.compile(r"/tables/(\w+)/")
_BOUND = re.compile(r"PushedFilters: .*GreaterThanOrEqual\(offset,\d+\)", re.DOTALL)


def scans(plans: list[str], cut: Manifest) -> list[tuple[str, str]]:
    """Return the table and the description of each scan of a cut's files, those of cached queries included."""
    each = (part.partition("ReadSchema")[0] for plan in plans for part in plan.split("Scan parquet"))
    found = ((_TABLE.search(scan), scan) for scan in each if cut.cut_id in scan)
    return [(table[1], scan) for table, scan in found if table is not None]


def night_of(spark: SparkSession, lake: Lake) -> Night:
    """The input of a run over the last cut, to which the runs before left nothing."""
    *history, last = lake.cuts()
    return Night(
        spark,
        last,
        new=lambda table: lake.read(spark, table, [last]),
        history=lambda table, bounds=None: lake.read(spark, table, history, bounds=bounds),
        carried=lambda _: None,
        new_cuts=[last],
        history_cuts=history,
        landed=lake.landed(last).rows,
    )


@full
def test_checks_read_history_by_literal_offsets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = EqualNights()
    landings = Landings(spark, world, tmp_path, monkeypatch)
    world.night()
    old = world.pay("old", "client-5", "client-6", 100)
    effect, asked = world.notify(old.debit, "receipt", FILE), world.notify(old.credit, "notice", MAIL)
    world.change(effect.result, source=effect.request)
    first = landings.cut()
    landings.land(first)
    world.night()
    # Each of these is to be compared with what an earlier cut has
    world.repeat(old.raw)
    for at in (old.transfer, old.debit, old.credit, asked.request):
        world.copy(at)
    world.copy(effect.result)
    landings.land(landings.cut())
    night = night_of(spark, landings.lake)
    spark.conf.set("spark.sql.maxMetadataStringLength", str(2**20))  # or descriptions of plans name few files
    try:
        with measured(spark, monkeypatch) as cost:
            found = [row for name, check in ALL.items() if name != DECISIONS for row in rows_of(check(night))]
    finally:
        spark.conf.unset("spark.sql.maxMetadataStringLength")
        spark.catalog.clearCache()
    assert any(row.topic == LEDGER_POSTINGS for row in found)
    read = scans(cost.plans, first)
    expected = {"payments", "transfers", "postings", "effect_requests", "effect_results"}
    assert {table for table, _ in read} >= expected
    unbound = [scan for _, scan in read if not _BOUND.search(scan)]
    assert not unbound, unbound[0]
