"""Records as Spark's Kafka source gives them, and the rows that the pipeline decodes from them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shared.events import catalogue
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.effects import EffectRequest, EffectResult, Resolution, encode_request, encode_result
from shared.events.headers import Headers
from shared.events.payments import AcceptedOpening, AcceptedPayment, AcceptedReversal, encode_instruction
from shared.events.postings import Decline, Entry, NotifiedBy, Posting, encode_ledger_event
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    PricedBy,
    Transfer,
    TransferReversal,
    encode_transfer,
)
from spark.decode import STRUCTS, TABLE, parse, typed_rows
from spark.schemas import TABLES, UNDECODABLE, Table, tables_of
from spark.session import COLUMNS
from tests.pipeline.nights import places

AT = datetime(2026, 1, 5, 23, 59, 59, 999000, UTC)
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KINDS = (StringType(), IntegerType(), LongType(), TimestampType(), BinaryType(), BinaryType(), ArrayType(HEADER))
RECORD = StructType([StructField(name, kind) for name, kind in zip(COLUMNS, KINDS, strict=True)])
"""A record as Spark's Kafka source gives it."""

NOT_LANDED = {
    "effect_resolutions": {"request", "resends", "settles_doubt"},
    "effect_results": {"request", "tried"},
    "effects_waiting": {
        *("request", "source", "origin", "sequence", "revision", "resends", "resends_before", "doubtful", "action"),
        *("void", "tried", "under_way", "settles_doubt"),
    },
}
"""Fields that no table needs: copies of other records, and fields for the outbox alone."""

Sent = tuple[bytes | None, bytes | None, Headers | None]
"""Key, value and headers."""


def kafka(spark: SparkSession, topic: str, sent: Sequence[Sent], at: datetime = AT) -> DataFrame:
    rows = [
        (topic, 3, offset, at, key, value, None if headers is None else list(headers))
        for offset, (key, value, headers) in enumerate(sent)
    ]
    return spark.createDataFrame(rows, RECORD).coalesce(1)


def tables(spark: SparkSession, topic: str, sent: Sequence[Sent]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table of the topic that has some, in the order they were sent."""
    parsed = parse(topic, kafka(spark, topic, sent)).persist()
    found = {}
    for table in (*tables_of(topic), TABLES[UNDECODABLE]):
        selected = select_table(topic, parsed, table)
        assert selected.schema.simpleString() == table.schema.simpleString()
        rows = [row.asDict(recursive=True) for row in selected.orderBy("offset").collect()]
        if rows:
            found[table.name] = rows
    parsed.unpersist()
    return found


def select_table(topic: str, parsed: DataFrame, table: Table) -> DataFrame:
    """The rows of one table, as they are landed and read."""
    return typed_rows(topic, parsed).where(f"{TABLE} = '{table.name}'").select(*table.schema.names)


def values(*sent: bytes | None) -> list[Sent]:
    return [(b"key", value, ()) for value in sent]


def fields(row: dict[str, Any], table: str) -> dict[str, Any]:
    """An event's own columns."""
    return {field.name: row[field.name] for field in TABLES[table].columns}


def expected(event: msgspec.Struct) -> dict[str, Any]:
    """An event's fields as Spark gives them."""
    found = {name: getattr(event, name) for name in event.__struct_fields__}
    if "entries" in found:
        found["entries"] = [msgspec.structs.asdict(entry) for entry in found["entries"]]
    found |= places(found)
    table = next((name for name, struct in STRUCTS.items() if struct is type(event)), "payments_raw")
    return {name: value for name, value in found.items() if name not in NOT_LANDED.get(table, ())}


BY = SubmittedBy("acme", "0123456789abcdef")
REQUEST = EffectRequest("e1", "receipt", "debit", "file:x", "a", "p1", "a", "2026-01-05")
EVENTS: dict[str, tuple[msgspec.Struct, ...]] = {
    "payments": (
        AcceptedPayment("p1", "a", "b", 2**53 - 1, "CZK", 2),
        AcceptedPayment("p1", "a", "b", 1, "CZK", 2, received_at_ms=1_767_600_000_000),
        AcceptedPayment("p1", "a", "b", 1, "CZK", 2, submitted_by=BY),
        AcceptedPayment("p1", "a", "b", 1, "CZK", 2, submitted_by=OPERATOR),
        AcceptedPayment('p\u00e9 \U0001f600 \\ " \n', "a", "b", 1, "CZK", 2, "EUR", "2026-01-05", "for you"),
    ),
    "reversals": (
        AcceptedReversal("r1", "a", "p1", 2),
        AcceptedReversal("r1", "a", "p1", 2, "2026-01-05", "sorry"),
        AcceptedReversal("r1", "a", "p1", 2, received_at_ms=1_767_600_000_000),
    ),
    "openings": (
        AcceptedOpening("o1", "a", schema_version=2),
        AcceptedOpening("o1", "a", None, 0, "acme", 2, 1_767_600_000_000, BY),
        AcceptedOpening("o1", "a", 500, 7, schema_version=2),
    ),
    "transfers": (
        Transfer("p1", "a", "b", 5, "CZK", 5, "CZK", "2026-01-05"),
        Transfer("p1", "a", "b", 2**63 - 1, "CZK", 4, "EUR", "2026-01-05", 7, "0.04", "text", "no_rate"),
        Transfer("p1", "a", "b", 5, "CZK", 5, "CZK", "2026-01-05", priced_by=PricedBy("3:17", None)),
        Transfer("p1", "a", "b", 5, "CZK", 5, "CZK", "2026-01-05", priced_by=PricedBy(None, None), submitted_by=BY),
    ),
    "transfer_reversals": (TransferReversal("r1", "a", "p1", "2026-01-05"),),
    "credit_legs": (
        CreditLeg("p1", "a", "b", -5, "CZK", "2026-01-05", reversal=True),
        CreditLeg("p1", "a", "b", 5, "CZK", "2026-01-05"),
    ),
    "account_openings": (AccountOpened("a", None), AccountOpened("a", 500, "acme", 0, "o1", 3, "2026-01-05", BY)),
    "account_closings": (AccountClosed("a"),),
    "postings": (
        Posting("p1", "debit", "a", "b", (Entry("a", "CZK", -(2**63)), Entry("b", "CZK", 2**63 - 1)), "2026-01-05"),
        Posting("p1", "credit", "a", "b", (Entry("a", "CZK", 1),), "2026-01-05", True, "p0", 7, "0.04", "text"),
        Posting("p1", "credit", "a", "b", (Entry("a", "CZK", 1),), "2026-01-05", notified_by=NotifiedBy("1:0", "0:4")),
    ),
    "declines": (
        Decline("p1", "a", "no_rate", "2026-01-05"),
        Decline("p1", "a", "no_rate", "2026-01-05", True),
        Decline("o1", "a", "not_authorised", "2026-01-05", opening=True, submitted_by=BY),
    ),
    "accounts_opened": (AccountOpened("a", None), AccountOpened("a", 0, "acme", 4, submitted_by=BY)),
    "accounts_closed": (AccountClosed("a"), AccountClosed("a", 5)),
    "effect_requests": (
        REQUEST,
        EffectRequest(
            "e2", "notice", "credit", "mailto:x@y", "b", "p1", "a", "2026-01-05", "b", 0, "EUR", 3, "r", True, "t", True
        ),
    ),
    "effect_resolutions": (Resolution("e1", 2, "resend", REQUEST),),
    "effect_results": (
        EffectResult("e1", "sent", 1_767_600_000_000),
        EffectResult("e1", "failed", 1_767_600_000_000, 3, 2, 1, "refused", "no", REQUEST),
    ),
}
ENCODE = {
    catalogue.PAYMENTS_ACCEPTED: encode_instruction,
    catalogue.LEDGER_TRANSFERS: encode_transfer,
    catalogue.LEDGER_POSTINGS: encode_ledger_event,
    catalogue.EFFECTS_REQUESTS: encode_request,
    catalogue.EFFECTS_RESULTS: encode_result,
}

POSTING = encode_ledger_event(EVENTS["postings"][1])
NOT_POSTINGS = (
    None,
    b"",
    b" ",
    b"null",
    b"5",
    b'"posting"',
    b"not json",
    b"{}",
    b"[" + POSTING + b"]",
    POSTING[:-1],
    POSTING + b"x",
    POSTING + POSTING,
    POSTING + b"," + POSTING,
    POSTING.replace(b'"posting"', b'"unknown"'),
    POSTING.replace(b'"type":"posting",', b""),
    POSTING.replace(b'"leg":"credit",', b""),
    POSTING.replace(b'"leg":"credit"', b'"leg":null'),
    POSTING.replace(b'["a","CZK",1]', b'["a","CZK"]'),
    POSTING.replace(b'["a","CZK",1]', b'["a","CZK",1.5]'),
    POSTING.replace(b'["a","CZK",1]', b'["a","CZK",9223372036854775808]'),
    POSTING.replace(b'["a","CZK",1]', b'["a",null,1]'),
    POSTING.replace(b'["a","CZK",1]', b"5"),
    POSTING.replace(b'[["a","CZK",1]]', b"{}"),
    POSTING.replace(b'"fee_minor":7', b'"fee_minor":"7"'),
    POSTING.replace(b'"fee_minor":7', b'"fee_minor":7.0'),
    POSTING.replace(b'"fee_minor":7', b'"fee_minor":99999999999999999999'),
    POSTING.replace(b'"reversal":true', b'"reversal":1'),
    POSTING.replace(b'"p1"', b'"\xff\xfe"'),
    POSTING.replace(b'"', b"'"),
    b"\xef\xbb\xbf" + POSTING,
    b"\x00" * 100,
    b'{"deep":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"fee_minor":' + b"9" * 5000 + b"}",
    b'{"type":"account_opened","account":"a","overdraft_minor":"much"}',
    b'{"type":"account_opened","account":"a","overdraft_minor":1e30}',
    b'{"type":"account_opened","overdraft_minor":5}',
)
