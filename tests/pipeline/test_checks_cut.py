"""Committed offsets that are missing or went back, and records that expired before they were landed."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from spark.checks import check_cut, check_lost
from spark.lake import Count, Landed
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, seal
from tests.pipeline.nights import found, night_of


def cut(
    previous: Manifest | None = None, *, ledger: int | None = 10, ranges: Mapping[str, Range] | None = None
) -> Manifest:
    """A cut of one partition; `ranges` are of topics that differ."""
    topics = {topic: {0: (ranges or {}).get(topic, Range(0, 10, 10))} for topic in LANDED_TOPICS}
    groups = {group: {0: ledger if group == "ledger" else 10} for group in INPUTS}
    sequence, digest = (previous.sequence + 1, previous.digest) if previous else (1, "")
    return seal(Manifest(VERSION, sequence, 1, "cluster", topics, groups, True, digest))


def landed(of: Manifest, *, lost: int | None) -> Landed:
    """The list of a cut of 10 offsets of payments.raw, of which some hold no record."""
    return Landed(2, of.cut_id, of.digest, {}, {"payments.raw": {0: Count(10, 10 - (lost or 0), 0, lost or 0, lost)}})


def check(spark: SparkSession, *cuts: Manifest, new: int = 1) -> list[tuple[str, str, str]]:
    night = replace(night_of(spark, cuts[-1], {}), history_cuts=cuts[:-new], new_cuts=cuts[-new:])
    return found(check_cut(night))


def test_offsets_of_a_group_must_not_go_back_or_vanish(spark: SparkSession) -> None:
    first = cut()
    at = ("offsets", "cut", "ledger.transfers:0:10")
    assert check(spark, first, cut(first)) == []
    assert check(spark, first, cut(first, ledger=11)) == []
    assert check(spark, first, cut(first, ledger=9)) == [at]
    assert check(spark, first, cut(first, ledger=None)) == [at]
    never = cut(ledger=None)
    assert check(spark, never, cut(never, ledger=0)) == []
    assert check(spark, never) == []


def test_a_run_over_several_cuts_compares_each_with_the_one_before(spark: SparkSession) -> None:
    first = cut()
    second = cut(first, ledger=3)
    third = cut(second)
    assert check(spark, first, second, third, new=2) == [("offsets", "cut", "ledger.transfers:0:10")]


def test_an_offset_that_no_batch_covers_held_a_record_that_is_lost(spark: SparkSession) -> None:
    assert found(check_lost(spark, [(cut(), landed(cut(), lost=2))])) == [("missing", "cut", "payments.raw:0:0")]
    assert found(check_lost(spark, [(cut(), landed(cut(), lost=lost)) for lost in (0, None)])) == []


def test_a_run_over_several_cuts_reports_what_each_of_them_lost(spark: SparkSession) -> None:
    first = cut()
    second = cut(first, ranges={"payments.raw": Range(10, 20, 20)})
    parts = [(first, landed(first, lost=2)), (second, landed(second, lost=1))]
    nights = [check_lost(spark, [part]) for part in parts]
    of_nights = [row for night in nights if night.breaks is not None for row in night.breaks.collect()]
    full = check_lost(spark, parts)
    assert full.breaks is not None
    assert full.breaks.collect() == of_nights
    assert [(row["offset"], row["detail"].partition(" ")[0]) for row in of_nights] == [(0, "2"), (10, "1")]


def test_records_that_expired_unlanded_are_a_break_where_none_may_expire(spark: SparkSession) -> None:
    expired = Range(4, 10, 10, beginning=7)
    topics = {"payments.raw": expired, "effects.requests": expired}
    assert check(spark, cut(ranges=topics)) == [("expired", "cut", "payments.raw:0:4")]
    # It was reported by the run over that cut
    assert check(spark, cut(ranges=topics), cut(cut(ranges=topics))) == []
