"""ingest's outcome of each raw record: raw = accepted + deduplicated + dead-lettered, offset by offset (I6).

PAYMENT and REVERSAL are the fields that every service before the ledger passes on unchanged. A record that is not an
event of its topic is a break of its own: between services there must be none.
"""

from typing import Final

from spark import links
from spark.checks import repeats
from spark.links import Agreement, Link, Side, unchanged, unreadable
from spark.night import Checked, Kind, Night, all_breaks, breaks, finding
from spark.places import place
from spark.schemas import UNDECODABLE
from spark.settling import hidden, settle

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


def check_undecodable(night: Night) -> Checked:
    """Return a break for each record that could not be read."""
    count = night.count(UNDECODABLE)
    if not count:
        return Checked(figures={"undecodable": 0})
    rows = night.new(UNDECODABLE).select("topic", "partition", "offset")
    found = finding(Kind.UNDECODABLE, "undecodable", "no event of its topic")
    return Checked(breaks(rows, found, "topic", "partition", "offset", "null"), {"undecodable": count})


_PAYMENT = "debtor creditor currency credit_currency value_date reference reverses"
_OWN = unchanged("debtor value_date reference")
_RECEIVED = {"received_at_ms": "received_at_ms"}
_SAME_TIME = "coalesce(c_received_at_ms = p_received_at_ms, true)"  # records of former versions do not have it
_TIME = "concat('received_at_ms ', c_received_at_ms, ', not ', p_received_at_ms)"
_TOPICS = "'payments.accepted', 'payments.deduplicated'"

LINK = Link(
    name="ingest",
    check="raw:outcomes",
    service="ingest",
    source="payments.raw",
    fields={
        **dict.fromkeys(_PAYMENT.split(), "string"),
        "amount_minor": "bigint",
        "received_at_ms": "bigint",
        "bytes": "bigint",
    },
    parents={
        "payments_raw": Side(
            {
                "kind": "coalesce(type, 'unreadable')",
                # A raw record is its own origin
                "origin": place("partition", "offset"),
                **_OWN,
                **unchanged("creditor amount_minor currency credit_currency reverses"),
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
                **_OWN,
                **_RECEIVED,
                **unchanged("creditor amount_minor currency credit_currency"),
            }
        ),
        "reversals": Side({"kind": "'reversal'", **_OWN, **_RECEIVED, "reverses": "reverses"}),
        "repeats": Side({"kind": "'repeat'", "debtor": "debtor"}),
        "dead_letters": Side(
            {
                "kind": "'dead letter'",
                "payment_id": "cast(null as string)",
                "bytes": "xxhash64(coalesce(value, x''))",
            }
        ),
        UNDECODABLE: unreadable(f"topic in ({_TOPICS})"),
    },
    agreements={
        "payment": Agreement(("payment",), PAYMENT, _SAME_TIME, _TIME),
        "reversal": Agreement(("reversal",), REVERSAL, _SAME_TIME, _TIME),
        "repeat": Agreement(("payment", "reversal"), ("payment_id", "debtor")),
        "dead letter": Agreement(("payment", "reversal", "unreadable"), ("bytes",)),
    },
    money=("currency", "amount_minor"),
)

_METRICS = {
    "records_in": "count_if(p_fresh and coalesce(c_nth, 1) = 1)",
    "accepted": "count_if(c_fresh and c_kind in ('payment', 'reversal'))",
    "deduplicated": "count_if(c_fresh and c_kind = 'repeat')",
    "dead_lettered": "count_if(c_fresh and c_kind = 'dead letter')",
}


def check(night: Night) -> Checked:
    """Compare each raw record with its outcome, and each repeat with the first of its identity."""
    joined = links.join(night, LINK, _METRICS)
    settled = settle(night, LINK, joined, hidden(night, LINK, joined))
    again = repeats.check_repeats(night, LINK, joined)
    return Checked(
        all_breaks([settled.breaks, again.breaks]),
        {**joined.metrics, **settled.figures, **again.figures},
        {**settled.in_flight, **again.in_flight},
        {**settled.carry, **again.carry},
    )
