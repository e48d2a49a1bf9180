"""The rules that separate records in flight from breaks, one record each, on the link of transform."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark import links
from spark.checks.intake import TRANSFORM
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, seal
from spark.night import BREAKS, JUDGED, Checked
from spark.schemas import TABLES
from spark.settling import settle
from tests.pipeline.nights import found, kept, night_of, rows_of, tables
from tests.tiers import full

ACCEPTED, TRANSFERS = "payments.accepted", "ledger.transfers"
CHECK = "accepted:transfers"
STABLE, UNSTABLE = 0, 1
"""Partitions: the second has transfers above the cut."""
COMMITTED = 90


def cut(*, settled: bool = False, beginning: int = 0) -> Manifest:
    """A cut from offset 10 to 100 of payments.accepted; partition 1 is read while transactions are open."""
    topics = {topic: {STABLE: Range(0, 1000, 1000), UNSTABLE: Range(0, 1000, 1000)} for topic in LANDED_TOPICS}
    topics[ACCEPTED] = {STABLE: Range(10, 100, 100, beginning), UNSTABLE: Range(10, 100, 100 if settled else 120)}
    if not settled:
        topics[TRANSFERS][UNSTABLE] = Range(0, 1000, 1010)
    groups = {service: {STABLE: COMMITTED, UNSTABLE: COMMITTED} for service in INPUTS}
    return seal(Manifest(VERSION, 2, 1, "cluster", topics, groups, settled, "before"))


def payment(offset: int, partition: int = STABLE, **more: Any) -> dict[str, Any]:
    """A row of `payments`, whose raw record has the same coordinates."""
    origin = {"origin_topic": "payments.raw", "origin_partition": partition, "origin_offset": offset}
    said = {"payment_id": f"p{offset}", "debtor": "alice", "creditor": "bob", "amount_minor": 5, "currency": "EUR"}
    where = {"topic": ACCEPTED, "partition": partition, "offset": offset, "reference": "", "value_date": "2026-01-05"}
    return {**where, **origin, **said, **more}


def transfer(source: int, partition: int = STABLE, offset: int | None = None, **more: Any) -> dict[str, Any]:
    """A row of `transfers`, made from the payment at `source`, by default at the same offset."""
    at = source if offset is None else offset
    made_from = {"source_topic": ACCEPTED, "source_partition": partition, "source_offset": source}
    priced = {"credit_minor": 5, "credit_currency": "EUR", "fee_minor": 0}
    return {**payment(source, partition), "topic": TRANSFERS, "offset": at, **made_from, **priced, **more}


def settled_link(
    spark: SparkSession,
    manifest: Manifest,
    parents: list[dict[str, Any]],
    children: list[dict[str, Any]],
    history: Mapping[str, list[dict[str, Any]]] | None = None,
    carried: Mapping[str, list[dict[str, Any]]] | None = None,
) -> Checked:
    """Check the link; carried rows are given by table name."""
    left = {
        f"transform_{'parents' if table == 'payments' else 'children'}_{table}": night_of(
            spark, manifest, {table: rows}
        ).new(table)
        for table, rows in (carried or {}).items()
    }
    return run(spark, manifest, {"payments": parents, "transfers": children}, left, history)


def run(
    spark: SparkSession,
    manifest: Manifest,
    rows: Mapping[str, list[dict[str, Any]]],
    carried: Mapping[str, DataFrame] | None = None,
    history: Mapping[str, list[dict[str, Any]]] | None = None,
    late: Mapping[str, Mapping[int, int]] | None = None,
) -> Checked:
    """Check the link; carried rows are given as the run before left them."""
    ranges = {topic: {number: Range(0, end, end) for number, end in of.items()} for topic, of in (late or {}).items()}
    late_cut = msgspec.structs.replace(manifest, topics=ranges) if late else None
    night = replace(night_of(spark, manifest, rows, history, carried), late_cut=late_cut)
    joined = links.join(night, TRANSFORM, {})
    return settle(night, TRANSFORM, joined)


def at(topic: str, offset: int, partition: int = STABLE) -> str:
    return f"{topic}:{partition}:{offset}"


@full
def test_parents_without_a_child(spark: SparkSession) -> None:
    parents = [
        payment(20),
        payment(30),  # passed, and its partition is stable
        payment(89),
        payment(COMMITTED),  # not consumed yet
        payment(20, UNSTABLE),
        payment(25, UNSTABLE),  # before the last visible one
        payment(40, UNSTABLE),
        payment(45, UNSTABLE),  # after it: its transfer may be above the cut
    ]
    children = [transfer(20), transfer(20, UNSTABLE), transfer(40, UNSTABLE)]
    checked = settled_link(spark, cut(), parents, children)
    missing = [at(ACCEPTED, 25, UNSTABLE), at(ACCEPTED, 30), at(ACCEPTED, 89)]
    assert found(checked) == sorted(("missing", CHECK, where) for where in missing)
    assert checked.in_flight == {"transform": 2, "transform_ahead": 0}
    carried = tables(checked.carry)["transform_parents_payments"]
    assert carried.schema.names == [*TABLES["payments"].schema.names, JUDGED]
    assert sorted((row["partition"], row["offset"], row[JUDGED]) for row in carried.collect()) == [
        (0, 30, True),
        (0, 89, True),
        (0, 90, False),
        (1, 25, True),
        (1, 45, False),
    ]
    assert {row["rechecked"] for row in rows_of(checked)} == {True}
    assert checked.breaks is not None
    assert checked.breaks.schema.simpleString() == BREAKS.simpleString()


def test_at_rest_nothing_is_under_way_but_what_was_not_consumed(spark: SparkSession) -> None:
    parents = [payment(45, UNSTABLE), payment(95, UNSTABLE), payment(96)]
    checked = settled_link(spark, cut(settled=True), parents, [transfer(96)])
    assert found(checked) == [
        ("missing", CHECK, at(ACCEPTED, 45, UNSTABLE)),
        ("torn", CHECK, at(TRANSFERS, 96)),  # visible, and its offset not committed
    ]
    assert checked.in_flight == {"transform": 1, "transform_ahead": 0}
    assert list(checked.carry) == ["transform_parents_payments", "transform_early"]


def test_a_missing_child_is_a_break_until_it_comes(spark: SparkSession) -> None:
    """Even where a later cut cannot see the end of its output partition."""
    first = settled_link(spark, cut(settled=True), [payment(45, UNSTABLE)], [])
    later = msgspec.structs.replace(cut(), sequence=3)
    assert found(first) == [("missing", CHECK, at(ACCEPTED, 45, UNSTABLE))]
    again = run(spark, later, {}, kept(first.carry))
    assert (found(again), again.in_flight["transform"]) == (found(first), 0)
    come = run(spark, later, {"transfers": [transfer(45, UNSTABLE)]}, kept(again.carry))
    assert found(come) == []
    assert "transform_parents_payments" not in come.carry


def test_what_is_in_flight_for_too_many_cuts_is_a_break(spark: SparkSession) -> None:
    parents = [
        payment(COMMITTED),  # not consumed
        payment(COMMITTED + 1),  # likewise, but younger
        payment(45, UNSTABLE),  # its transfer may be above the cut
        payment(46, UNSTABLE),  # likewise, but younger
        payment(92),
    ]
    late = {ACCEPTED: {STABLE: COMMITTED + 1, UNSTABLE: 46}, TRANSFERS: {STABLE: 93}}
    rows = {"payments": parents, "transfers": [transfer(92)]}  # it is visible, and its offset is not committed
    checked = run(spark, cut(), rows, late=late)
    assert found(checked) == [
        ("missing", CHECK, at(ACCEPTED, COMMITTED)),
        ("missing", CHECK, at(ACCEPTED, 45, UNSTABLE)),
        ("torn", CHECK, at(TRANSFERS, 92)),
    ]
    assert checked.in_flight["transform"] == 2
    assert "transform did not consume it in 3 cuts" in {row["detail"] for row in rows_of(checked)}
    # A later run has no need to know that they are late
    again = run(spark, cut(), {"transfers": [transfer(92)]}, kept(checked.carry))
    assert ("torn", CHECK, at(TRANSFERS, 92)) in found(again)
    committed = {service: {STABLE: 100, UNSTABLE: 100} for service in INPUTS}
    taken = msgspec.structs.replace(cut(), groups=committed)
    consumed = run(spark, taken, {"transfers": [transfer(COMMITTED), transfer(COMMITTED + 1)]}, kept(checked.carry))
    assert found(consumed) == [("missing", CHECK, at(ACCEPTED, 45, UNSTABLE))]


@full
def test_a_child_ahead_of_the_committed_offset_is_fine_under_way(spark: SparkSession) -> None:
    checked = settled_link(spark, cut(), [payment(95)], [transfer(95)])
    assert found(checked) == []
    assert checked.in_flight == {"transform": 0, "transform_ahead": 0}


def test_children_without_a_parent(spark: SparkSession) -> None:
    children = [
        transfer(20, offset=1, source_topic=None, source_partition=None, source_offset=None),
        transfer(20, offset=2, source_topic="payments.raw"),
        transfer(20, offset=3, source_partition=9),
        transfer(20, offset=4, source_offset=-1),
        transfer(100, offset=5),  # at the high watermark
        transfer(120, UNSTABLE, 6),
        transfer(10**17, offset=7),
        transfer(50, offset=8),  # in the cut, and no committed record
        transfer(3, offset=9),  # in an earlier cut
        transfer(4, offset=10),  # nothing in an earlier cut
        transfer(105, UNSTABLE, 11),  # above the cut, and below the high watermark
    ]
    checked = settled_link(spark, cut(), [], children, {"payments": [payment(3), payment(3, UNSTABLE)]})
    orphans = [("orphan", CHECK, at(TRANSFERS, offset)) for offset in (1, 2, 3, 4, 5, 7)]
    expected = [
        *orphans,
        ("orphan", CHECK, at(TRANSFERS, 6, UNSTABLE)),
        ("uncommitted", CHECK, at(TRANSFERS, 8)),
        ("duplicate", CHECK, at(TRANSFERS, 9)),
        ("uncommitted", CHECK, at(TRANSFERS, 10)),
    ]
    assert found(checked) == sorted(expected)
    assert checked.in_flight == {"transform": 0, "transform_ahead": 1}
    ahead = tables(checked.carry)["transform_children_transfers"].collect()
    assert [(row["offset"], row["source_offset"], row["amount_minor"]) for row in ahead] == [(11, 105, 5)]


@full
def test_carried_rows_are_joined_first(spark: SparkSession) -> None:
    carried = {"payments": [payment(5), payment(6)], "transfers": [transfer(30)]}
    checked = settled_link(spark, cut(), [payment(30)], [transfer(5, offset=50)], {"payments": [payment(5)]}, carried)
    assert found(checked) == [("missing", CHECK, at(ACCEPTED, 6))]


@full
def test_links_to_expired_records_cannot_be_judged(spark: SparkSession) -> None:
    children = [transfer(4, offset=1), transfer(7, offset=2), transfer(12, offset=3), transfer(14, offset=4)]
    checked = settled_link(spark, cut(beginning=13), [], children, {"payments": [payment(4)]})
    assert found(checked) == [("duplicate", CHECK, at(TRANSFERS, 1)), ("uncommitted", CHECK, at(TRANSFERS, 4))]
    assert checked.figures == {"transform_expired": 2}


def test_each_child_beyond_the_first_is_a_duplicate(spark: SparkSession) -> None:
    children = [transfer(20, offset=70), transfer(20, offset=60), transfer(20, offset=80), transfer(21)]
    checked = settled_link(spark, cut(), [payment(20), payment(21)], children)
    assert found(checked) == [("duplicate", CHECK, at(TRANSFERS, 70)), ("duplicate", CHECK, at(TRANSFERS, 80))]


def test_partition_kind_origin_and_fields_must_agree(spark: SparkSession) -> None:
    parents = [payment(offset) for offset in (20, 21, 22, 23, 24)]
    children = [
        transfer(20, partition=STABLE) | {"partition": UNSTABLE},
        transfer(21, origin_offset=20),
        transfer(22, origin_topic="ledger.transfers"),
        transfer(23, amount_minor=6, credit_minor=6, debtor="mallory"),
    ]
    reversal = {**transfer(24), "reverses": "p1"}
    manifest = cut()
    night = night_of(spark, manifest, {"payments": parents, "transfers": children, "transfer_reversals": [reversal]})
    joined = links.join(night, TRANSFORM, {"rows": "count(*)"})
    checked = settle(night, TRANSFORM, joined)
    assert found(checked) == [
        ("amount", CHECK, at(TRANSFERS, 23)),
        ("orphan", CHECK, at(TRANSFERS, 21)),
        ("orphan", CHECK, at(TRANSFERS, 22)),
        ("orphan", CHECK, at(TRANSFERS, 24)),
        ("orphan", CHECK, at(TRANSFERS, 20, UNSTABLE)),
    ]
    details = {row["offset"]: row["detail"] for row in rows_of(checked)}
    assert details[23] == "debtor mallory, not alice; amount_minor 6, not 5"
    assert details[21] == "its origin is payments.raw:0:20, that of payments.accepted:0:21 is payments.raw:0:21"
    assert joined.metrics == {"rows": 5}


@full
def test_marks_are_carried_while_an_output_partition_is_not_stable(spark: SparkSession) -> None:
    first = cut()
    before = settled_link(spark, first, [payment(40, UNSTABLE)], [transfer(40, UNSTABLE)])
    marks = kept(before.carry)["transform_marks"]
    assert marks.collect()[0].asDict() == {"rank": 0, "partition": UNSTABLE, "at": 40 << 10 | UNSTABLE}
    later = msgspec.structs.replace(first, previous=first.digest)
    carried = {"transform_marks": marks}
    parents = [payment(35, UNSTABLE), payment(41, UNSTABLE)]
    night = night_of(spark, later, {"payments": parents}, carried=carried)
    joined = links.join(night, TRANSFORM, {})
    checked = settle(night, TRANSFORM, joined)
    assert found(checked) == [("missing", CHECK, at(ACCEPTED, 35, UNSTABLE))]
    assert [row["at"] for row in tables(checked.carry)["transform_marks"].collect()] == [40 << 10 | UNSTABLE]


def test_rows_carried_by_a_former_version_are_joined(spark: SparkSession) -> None:
    """They lack the columns that this version added."""
    waiting = night_of(spark, cut(), {"payments": [payment(5)]}).new("payments").drop("received_at_ms")
    night = night_of(spark, cut(), {"transfers": [transfer(5)]}, carried={"transform_parents_payments": waiting})
    joined = links.join(night, TRANSFORM, {})
    assert found(settle(night, TRANSFORM, joined)) == []


@pytest.mark.parametrize("topic", [ACCEPTED, TRANSFERS])
@full
def test_an_undecodable_record_is_not_judged_twice(spark: SparkSession, topic: str) -> None:
    parents, children = [payment(20)], [transfer(20)]
    unread = (parents if topic == ACCEPTED else children)[0]
    columns = {field.name for field in TABLES["undecodable"].schema}
    night = night_of(
        spark,
        cut(),
        {
            "payments": parents if topic == TRANSFERS else [],
            "transfers": children if topic == ACCEPTED else [],
            "undecodable": [{name: value for name, value in unread.items() if name in columns}],
        },
    )
    joined = links.join(night, TRANSFORM, {})
    assert found(settle(night, TRANSFORM, joined)) == []


@full
def test_sources_at_the_bounds_of_the_cut(spark: SparkSession) -> None:
    children = [
        transfer(13, offset=1),  # the first record of the log
        transfer(100, UNSTABLE, 2),  # the first one beyond the cut
    ]
    checked = settled_link(spark, cut(beginning=13), [], children)
    assert found(checked) == [("uncommitted", CHECK, at(TRANSFERS, 1))]
    assert checked.in_flight == {"transform": 0, "transform_ahead": 1}
    assert "transform_children_transfers" in checked.carry
    assert not checked.figures


@full
def test_the_amount_at_risk_is_never_negative(spark: SparkSession) -> None:
    checked = settled_link(spark, cut(), [payment(30, amount_minor=-5)], [])
    assert [int(row["amount_minor"]) for row in rows_of(checked)] == [5]


def test_an_absent_field_differs_from_any_value(spark: SparkSession) -> None:
    checked = settled_link(spark, cut(), [payment(30)], [transfer(30, creditor=None)])
    assert found(checked) == [("amount", CHECK, at(TRANSFERS, 30))]
