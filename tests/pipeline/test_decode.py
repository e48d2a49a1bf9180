"""Decoding into typed rows: nothing lost, defaults filled in, undecodable records set aside, no failed read."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.headers import REPAIR
from shared.events.transfers import AccountClosed, encode_transfer
from spark import session
from spark.decode import NOT_FIELDS, TABLE, UNKNOWN, parse
from spark.lake import Count, Lake, Unknown
from spark.land import land
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, seal
from spark.metrics import Progress
from spark.schemas import UNDECODABLE, tables_of
from tests.pipeline.records import (
    AT,
    ENCODE,
    EVENTS,
    NOT_POSTINGS,
    POSTING,
    Sent,
    expected,
    fields,
    kafka,
    tables,
    values,
)
from tests.tiers import mostly_full


@pytest.mark.parametrize("topic", sorted(ENCODE))
def test_every_event_comes_back_with_its_defaults(spark: SparkSession, topic: str) -> None:
    events = {table.name: EVENTS[table.name] for table in tables_of(topic)}
    encode: Any = ENCODE[topic]
    sent = [encode(event) for made in events.values() for event in made]
    found = tables(spark, topic, values(*sent))
    assert {name: [fields(row, name) for row in rows] for name, rows in found.items()} == {
        name: [{**dict.fromkeys(NOT_FIELDS.get(name, ())), **expected(event)} for event in made]
        for name, made in events.items()
    }


def test_a_record_of_the_ledger_names_the_repair_that_wrote_it(spark: SparkSession) -> None:
    repaired = (("source", b"ledger.transfers:0:9"), (REPAIR, b"repair-1:0"))
    made = [EVENTS[table.name][0] for table in tables_of(catalogue.LEDGER_POSTINGS)]
    encode: Any = ENCODE[catalogue.LEDGER_POSTINGS]
    sent: list[Sent] = [(b"key", encode(event), repaired) for event in made]
    found = tables(spark, catalogue.LEDGER_POSTINGS, sent)
    assert {name: [row["repair"] for row in rows] for name, rows in found.items()} == {
        table.name: ["repair-1:0"] for table in tables_of(catalogue.LEDGER_POSTINGS)
    }


def test_a_row_has_its_coordinates_and_its_source(spark: SparkSession) -> None:
    value = encode_transfer(AccountClosed("a"))
    links = (("origin", b"payments.raw:5:1207"), ("note", b"x"), ("source", b"payments.accepted:0:9"))
    [row] = tables(spark, catalogue.LEDGER_TRANSFERS, [(b"a", value, links)])["account_closings"]
    assert row == {
        "topic": "ledger.transfers",
        "partition": 3,
        "offset": 0,
        "timestamp": AT.replace(tzinfo=None),
        "key": "a",
        "origin_topic": "payments.raw",
        "origin_partition": 5,
        "origin_offset": 1207,
        "source_topic": "payments.accepted",
        "source_partition": 0,
        "source_offset": 9,
        "account": "a",
        "version": 0,
        "day": date(2026, 1, 5),
    }


def test_a_malformed_link_is_null(spark: SparkSession) -> None:
    origins = [
        b"",
        b"payments.raw",
        b"payments.raw:1",
        b"payments.raw:x:1",
        b"payments.raw:1:",
        b"a:1:2:3",
        b"payments.raw:1024:5",  # as a place, these are those of partition 0 and of offset 5
        b"payments.raw:0:%d" % (2**54 + 5),
        b"payments.raw:-1:5",
        b"payments.raw:1:-5",
        b"\xff:\xff:1",
    ]
    value, source = encode_transfer(AccountClosed("a")), ("source", b"payments.raw:1:99999999999999999999")
    records = [(b"\xff", value, (("origin", origin), source)) for origin in origins]
    rows = tables(spark, catalogue.LEDGER_TRANSFERS, records)["account_closings"]
    assert len(rows) == len(origins)
    for row in rows:
        parts = {row[f"{link}_{part}"] for link in ("origin", "source") for part in ("topic", "partition", "offset")}
        assert parts == {None}
        assert row["key"] == "\ufffd"


def test_absent_headers_are_null_and_the_first_of_two_counts(spark: SparkSession) -> None:
    value = encode_transfer(AccountClosed("a"))
    twice = (("origin", b"a:1:2"), ("origin", b"b:3:4"))
    sent: list[Sent] = [(None, value, None), (None, value, ()), (None, value, twice)]
    rows = tables(spark, catalogue.LEDGER_TRANSFERS, sent)["account_closings"]
    assert [(row["key"], row["origin_topic"], row["origin_offset"]) for row in rows] == [
        (None, None, None),
        (None, None, None),
        (None, "a", 2),
    ]


def test_bytes_that_are_not_an_event_are_kept(spark: SparkSession) -> None:
    assert len(set(NOT_POSTINGS)) == len(NOT_POSTINGS)
    assert POSTING not in NOT_POSTINGS
    found = tables(spark, catalogue.LEDGER_POSTINGS, values(*NOT_POSTINGS, POSTING))
    kept = found.pop(UNDECODABLE)
    assert [row["value"] and bytes(row["value"]) for row in kept] == list(NOT_POSTINGS)
    assert kept[0]["topic"] == "ledger.postings"
    assert {name: len(rows) for name, rows in found.items()} == {"postings": 1}


def test_space_and_unknown_fields_are_accepted(spark: SparkSession) -> None:
    spaced = b" \r\n" + POSTING.replace(b",", b" ,\n\t").replace(b":", b" : ") + b"\n "
    longer = POSTING.replace(b"{", b'{"new":{"deep":[1,{"fee_minor":9}]},', 1)
    rows = tables(spark, catalogue.LEDGER_POSTINGS, values(POSTING, spaced, longer))["postings"]
    assert len({msgspec.json.encode(fields(row, "postings")) for row in rows}) == 1
    assert len(rows) == 3


def test_the_day_is_that_of_arrival_in_utc(spark: SparkSession) -> None:
    value = encode_transfer(AccountClosed("a"))
    days = []
    for at in (datetime(2026, 1, 5, tzinfo=UTC), AT, datetime(2026, 1, 6, tzinfo=UTC)):
        parsed = parse(catalogue.LEDGER_TRANSFERS, kafka(spark, catalogue.LEDGER_TRANSFERS, values(value), at))
        days += [row.day for row in parsed.select(TABLE, "day").collect()]
    assert days == [date(2026, 1, 5), date(2026, 1, 5), date(2026, 1, 6)]


def test_records_with_unknown_fields_are_counted_where_they_are_landed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = msgspec.json.encode({**msgspec.json.decode(POSTING), "new_field": [1]})
    records = kafka(spark, catalogue.LEDGER_POSTINGS, values(POSTING, strange, POSTING, strange))
    monkeypatch.setattr(session, "read_topic", lambda *_: records)
    topics = {topic: {3: Range(0, 0, 0)} for topic in LANDED_TOPICS} | {catalogue.LEDGER_POSTINGS: {3: Range(0, 6, 6)}}
    groups: dict[str, dict[int, int | None]] = {group: {3: None} for group in INPUTS}
    cut = seal(Manifest(VERSION, 1, 5, "kafka", topics, groups, True))
    lake = Lake(tmp_path)
    landed = land(spark, cut, "none", lake, Progress(print))
    assert landed.unknown == {catalogue.LEDGER_POSTINGS: Unknown(2, 3, 1)}
    assert landed.counts == {catalogue.LEDGER_POSTINGS: {3: Count(6, 4, 0, 0)}}
    assert landed == lake.landed(cut)
    assert lake.read(spark, "postings", [cut]).count() == landed.rows["postings"] == 4


@pytest.mark.parametrize("topic", mostly_full(sorted(ENCODE), [catalogue.LEDGER_TRANSFERS]))
def test_a_record_with_a_field_that_no_event_has_is_marked(spark: SparkSession, topic: str) -> None:
    encode: Any = ENCODE[topic]
    known = [encode(event) for table in tables_of(topic) for event in EVENTS[table.name]]
    strange = [msgspec.json.encode({**msgspec.json.decode(text), "new_field": None}) for text in known]
    sent = values(*known, *strange, b"{", b"[1]", b"\xff", None)
    rows = parse(topic, kafka(spark, topic, sent)).select("offset", UNKNOWN).orderBy("offset").collect()
    assert [row.offset for row in rows if row[UNKNOWN]] == list(range(len(known), 2 * len(known)))
