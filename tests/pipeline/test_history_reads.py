"""Reads of earlier cuts by checks: offsets are bound by literals, by which the Parquet reader skips row groups."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_POSTINGS
from spark.checks import ALL
from spark.history import widening
from spark.lake import Lake
from spark.manifest import Manifest
from spark.night import Night
from spark.runs import Carried, Runs
from tests.pipeline.costs import measured
from tests.pipeline.landings import EqualNights, Landings
from tests.pipeline.nights import manifest, night, rows_of
from tests.planted import FILE, MAIL
from tests.tiers import full

CARRIED = {"accounts_closed", "reference_subscriptions"}
"""Tables of which a run needs no earlier rows where the run before left what it knew."""
_TABLE = re.compile(r"/tables/(\w+)/")
_BOUND = re.compile(r"PushedFilters: .*GreaterThanOrEqual\(offset,\d+\)", re.DOTALL)


def scans(plans: list[str], cut: Manifest) -> list[tuple[str, str]]:
    """Return the table and the description of each scan of a cut's files, those of cached queries included."""
    each = (part.partition("ReadSchema")[0] for plan in plans for part in plan.split("Scan parquet"))
    found = ((_TABLE.search(scan), scan) for scan in each if cut.cut_id in scan)
    return [(table[1], scan) for table, scan in found if table is not None]


def night_of(spark: SparkSession, lake: Lake, left: Carried) -> Night:
    """The input of a run over the last cut.

    Args:
        left: by the run before.
    """
    *history, last = lake.cuts()
    return Night(
        spark,
        last,
        new=lambda table: lake.read(spark, table, [last]),
        history=lambda table, bounds: lake.read(spark, table, history, bounds=bounds),
        carried=left.table,
        few_carried=left.few,
        new_cuts=[last],
        history_cuts=history,
        landed=lake.landed(last).rows,
    )


@full
@pytest.mark.parametrize("was_run", [False, True])
def test_checks_read_history_by_literal_offsets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_run: bool
) -> None:
    world = EqualNights()
    landings = Landings(spark, world, tmp_path, monkeypatch)
    world.night()
    world.look_back()
    world.append(LEDGER_POSTINGS, 0, b"no posting")
    old = world.pay("old", "client-5", "client-6", 100)
    effect, asked = world.notify(old.debit, "receipt", FILE), world.notify(old.credit, "notice", MAIL)
    world.change(effect.result, source=effect.request)
    first = landings.cut()
    if was_run:
        landings.run(first)
    else:
        landings.land(first)
    world.night()
    world.look_back()
    # Each of these is to be compared with what an earlier cut has
    world.repeat(old.raw)
    for at in (old.transfer, old.debit, old.credit, asked.request):
        world.copy(at)
    world.copy(effect.result)
    landings.land(landings.cut())
    left = Runs(landings.lake).carried(spark, first) if was_run else Carried(spark, tmp_path, {})
    now = night_of(spark, landings.lake, left)
    spark.conf.set("spark.sql.maxMetadataStringLength", str(2**20))  # or descriptions of plans name few files
    try:
        with measured(spark, monkeypatch, plans=True) as cost:
            found = [row for check in ALL.values() for row in rows_of(check(now))]
    finally:
        spark.conf.unset("spark.sql.maxMetadataStringLength")
        spark.catalog.clearCache()
    assert any(row.topic == LEDGER_POSTINGS for row in found)
    read = scans(cost.plans, first)
    expected = {"payments", "transfers", "postings", "accounts_opened"}
    expected |= {"effect_requests", "effect_results", "undecodable"}
    tables = {table for table, _ in read}
    assert tables >= expected
    assert tables & CARRIED == (set() if was_run else {"reference_subscriptions"})
    unbound = [scan for _, scan in read if not _BOUND.search(scan)]
    assert not unbound, unbound[0]


def test_what_is_read_of_records_of_unknown_age_grows_from_the_newest_on(spark: SparkSession) -> None:
    world = EqualNights()
    for _ in range(40):
        world.append(EFFECTS_REQUESTS, 0, b"")
    world.append(EFFECTS_REQUESTS, 1, b"")
    now = night(spark, world, manifest(world, previous=manifest(world)))
    found = [(bounds[0], bounds[1]) for bounds in widening(now, EFFECTS_REQUESTS, 1)]
    assert found == [((79, 80), (1, 2)), ((72, 80), (0, 2)), ((16, 80), (0, 2)), ((0, 80), (0, 2))]
