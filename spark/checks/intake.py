"""Payments up to the ledger: ingest's outcome of each raw record, and transform's of each accepted one (I6).

Offset by offset, raw = accepted + deduplicated + dead-lettered. Of each accepted payment there is one transfer with the
same fields, priced at its own rate: `spark.decisions.prices.with_fault` judges that on the row alone.

PAYMENT, REVERSAL and OPENING are the fields that every service before the ledger passes on unchanged, with the client
and key of the raw record. A record that is not an event of its topic is a break of its own: between services there must
be none.
"""

from typing import Final

from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark import links, ownership
from spark.checks import repeats
from spark.decisions.prices import with_fault
from spark.links import Agreement, Link, Side, unchanged, unreadable
from spark.night import NO_FINDING, Checked, Kind, Night, all_breaks, breaks, finding
from spark.ownership import DIGEST, OWNER, client, with_clients
from spark.places import place
from spark.schemas import UNDECODABLE
from spark.settling import settle

PAYMENT: Final = (
    "payment_id",
    "debtor",
    "creditor",
    "amount_minor",
    "currency",
    "credit_currency",
    "value_date",
    "reference",
)
REVERSAL: Final = ("payment_id", "debtor", "reverses", "value_date", "reference")
OPENING: Final = ("payment_id", "debtor", "terms")


def check_undecodable(night: Night) -> Checked:
    """Return a break for each record that could not be read."""
    count = night.count(UNDECODABLE)
    if not count:
        return Checked(figures={"undecodable": 0})
    rows = night.new(UNDECODABLE).select("topic", "partition", "offset")
    found = finding(Kind.UNDECODABLE, "undecodable", "no event of its topic")
    return Checked(breaks(rows, found, "topic", "partition", "offset", "null"), {"undecodable": count})


_TEXTS = "debtor creditor currency credit_currency value_date reference reverses terms"
_NUMBERS = ("amount_minor", "submitted")
_TERMS = "to_json(named_struct({fields}))".format(
    fields=", ".join(f"'{name}', {name}" for name in ("overdraft_minor", "expected_version", "owner"))
)
_SUBMITTED = {"submitted": DIGEST}
_OWN_OF_RAW = unchanged("debtor value_date reference")
_RECEIVED_AT = {"received_at_ms": "received_at_ms"}
_SAME_TIME = "coalesce(c_received_at_ms = p_received_at_ms, true)"  # records of former versions do not have it
_TIME = "concat('received_at_ms ', c_received_at_ms, ', not ', p_received_at_ms)"
_TOPICS = "'payments.accepted', 'payments.deduplicated'"

INGEST = Link(
    name="ingest",
    check="raw:outcomes",
    service="ingest",
    source="payments.raw",
    fields={
        **dict.fromkeys(_TEXTS.split(), "string"),
        **dict.fromkeys((*_NUMBERS, "received_at_ms", "bytes"), "bigint"),
    },
    parents={
        "payments_raw": Side(
            {
                "kind": "coalesce(type, 'unreadable')",
                # A raw record is its own origin
                "origin": place("partition", "offset"),
                **_OWN_OF_RAW,
                **unchanged("creditor amount_minor currency credit_currency reverses"),
                "terms": f"if(type = 'account_opening', {_TERMS}, null)",
                **_SUBMITTED,
                "received_at_ms": "unix_millis(timestamp)",
                # Of bytes alone, no amount: 64 bits show whether they are the same
                "bytes": "xxhash64(coalesce(value, x''))",
            }
        )
    },
    children={
        "payments": Side(
            {
                "kind": "'payment'",
                **_OWN_OF_RAW,
                **_RECEIVED_AT,
                **_SUBMITTED,
                **unchanged("creditor amount_minor currency credit_currency"),
            }
        ),
        "reversals": Side({"kind": "'reversal'", **_OWN_OF_RAW, **_RECEIVED_AT, **_SUBMITTED, "reverses": "reverses"}),
        "openings": Side(
            {
                "kind": "'opening'",
                "debtor": "debtor",
                **_RECEIVED_AT,
                **_SUBMITTED,
                "terms": _TERMS,
            }
        ),
        "repeats": Side({"kind": "'repeat'", "debtor": "debtor"}),
        "dead_letters": Side(
            {
                "kind": "'dead letter'",
                "payment_id": "cast(null as string)",
                **_SUBMITTED,
                "bytes": "xxhash64(coalesce(value, x''))",
            }
        ),
        UNDECODABLE: unreadable(f"topic in ({_TOPICS})"),
    },
    agreements={
        "payment": Agreement(("payment",), PAYMENT, _SAME_TIME, _TIME, has_client=True),
        "reversal": Agreement(("reversal",), REVERSAL, _SAME_TIME, _TIME, has_client=True),
        "opening": Agreement(("account_opening",), OPENING, _SAME_TIME, _TIME, has_client=True),
        "repeat": Agreement(("payment", "reversal", "account_opening"), ("payment_id", "debtor")),
        "dead letter": Agreement(
            ("payment", "reversal", "account_opening", "unreadable"),
            ("bytes",),
            has_client=True,
            client_may_be_absent=True,
        ),
    },
    money=("currency", "amount_minor"),
)

_INGEST_METRICS = {
    "records_in": "count_if(p_fresh and coalesce(c_nth, 1) = 1)",
    "accepted": "count_if(c_fresh and c_kind in ('payment', 'reversal', 'opening'))",
    "deduplicated": "count_if(c_fresh and c_kind = 'repeat')",
    "dead_lettered": "count_if(c_fresh and c_kind = 'dead letter')",
}


def check_ingest(night: Night) -> Checked:
    """Compare each raw record with its outcome, and each repeat with the first of its identity."""
    joined = links.join(night, with_clients(night, INGEST), _INGEST_METRICS)
    settled = settle(night, INGEST, joined)
    again = repeats.check_repeats(night, INGEST, joined)
    return Checked(
        all_breaks([settled.breaks, again.breaks]),
        {**joined.metrics, **settled.figures, **again.figures},
        {**settled.in_flight, **again.in_flight},
        {**settled.carry, **again.carry, **ownership.to_carry(night)},
    )


_CHECK = "accepted:transfers"
_MISPRICED = finding(Kind.AMOUNT, _CHECK, "{fault}", fault="price_fault")
_OWN = unchanged("debtor reference")
# Without a value date, transform takes the day of receipt; in records of former versions, that of the accepted record
_RECEIVED = "coalesce(timestamp_millis(received_at_ms), timestamp)"
_DAY_OF_RECEIPT = f"date_format({_RECEIVED}, 'yyyy-MM-dd')"
_DATED = {"value_date": f"coalesce(value_date, {_DAY_OF_RECEIPT})"}

TRANSFORM = Link(
    name="transform",
    check=_CHECK,
    service="transform",
    source="payments.accepted",
    fields={**dict.fromkeys(_TEXTS.split(), "string"), **dict.fromkeys(_NUMBERS, "bigint")},
    parents={
        "payments": Side(
            {
                "kind": "'payment'",
                **_OWN,
                **_DATED,
                **_SUBMITTED,
                **unchanged("creditor amount_minor currency"),
                "credit_currency": "coalesce(credit_currency, currency)",
            }
        ),
        "reversals": Side({"kind": "'reversal'", **_OWN, **_DATED, **_SUBMITTED, "reverses": "reverses"}),
        "openings": Side(
            {
                "kind": "'opening'",
                "debtor": "debtor",
                "value_date": _DAY_OF_RECEIPT,
                **_SUBMITTED,
                "terms": _TERMS,
            },
            prepare=lambda openings: openings.withColumn(
                "owner", F.expr(f"coalesce(owner, {client('submitted_by')}, '{OWNER}')")
            ),
        ),
        UNDECODABLE: unreadable("topic = 'payments.accepted'"),
    },
    children={
        "transfers": Side(
            {
                "kind": "'transfer'",
                **_OWN,
                **_SUBMITTED,
                **unchanged("creditor amount_minor currency credit_currency value_date"),
                "fault": f"if(price_fault is null, {NO_FINDING}, {_MISPRICED})",
            },
            prepare=with_fault,
        ),
        "transfer_reversals": Side(
            {"kind": "'reversal'", **_OWN, **_SUBMITTED, "value_date": "value_date", "reverses": "reverses"}
        ),
        "account_openings": Side(
            {
                "kind": "'opening'",
                "payment_id": "command_id",
                "debtor": "account",
                "value_date": "value_date",
                **_SUBMITTED,
                "terms": _TERMS,
            },
            "source_topic = 'payments.accepted'",  # an operator's command has no source
        ),
        # Others write to this topic as well: the source shows whether it is transform's
        UNDECODABLE: unreadable("topic = 'ledger.transfers' and source_topic = 'payments.accepted'"),
    },
    agreements={
        "transfer": Agreement(("payment",), PAYMENT, has_client=True),
        "reversal": Agreement(("reversal",), REVERSAL, has_client=True),
        "opening": Agreement(("opening",), (*OPENING, "value_date"), has_client=True),
    },
    money=("currency", "amount_minor"),
)

_TRANSFORM_METRICS = {"transfers": "count_if(c_fresh and c_kind in ('transfer', 'reversal', 'opening'))"}


def check_transform(night: Night) -> Checked:
    """Compare each accepted payment or reversal with its transfer."""
    joined = links.join(night, with_clients(night, TRANSFORM), _TRANSFORM_METRICS)
    settled = settle(night, TRANSFORM, joined)
    return Checked(settled.breaks, {**joined.metrics, **settled.figures}, settled.in_flight, settled.carry)
