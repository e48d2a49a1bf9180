"""transform's outcome of each accepted payment: one transfer with the same fields, priced at its own rate.

The price is judged on the row alone (`spark.decisions.prices.with_fault`).
"""

from spark import links
from spark.checks import intake
from spark.decisions.prices import with_fault
from spark.links import Agreement, Link, Side, unchanged, unreadable
from spark.night import NO_FINDING, Checked, Kind, Night, finding
from spark.schemas import UNDECODABLE
from spark.settling import hidden, settle

_CHECK = "accepted:transfers"
_MISPRICED = finding(Kind.AMOUNT, _CHECK, "{fault}", fault="price_fault")
_TEXTS = "debtor creditor currency credit_currency value_date reference reverses"
_OWN = unchanged("debtor reference")
# Without a value date, transform takes the day of receipt; in records of former versions, that of the accepted record
_RECEIVED = "coalesce(timestamp_millis(received_at_ms), timestamp)"
_DATED = {"value_date": f"coalesce(value_date, date_format({_RECEIVED}, 'yyyy-MM-dd'))"}

LINK = Link(
    name="transform",
    check=_CHECK,
    service="transform",
    source="payments.accepted",
    fields={**dict.fromkeys(_TEXTS.split(), "string"), "amount_minor": "bigint"},
    parents={
        "payments": Side(
            {
                "kind": "'payment'",
                **_OWN,
                **_DATED,
                **unchanged("creditor amount_minor currency"),
                "credit_currency": "coalesce(credit_currency, currency)",
            }
        ),
        "reversals": Side({"kind": "'reversal'", **_OWN, **_DATED, "reverses": "reverses"}),
        UNDECODABLE: unreadable("topic = 'payments.accepted'"),
    },
    children={
        "transfers": Side(
            {
                "kind": "'transfer'",
                **_OWN,
                **unchanged("creditor amount_minor currency credit_currency value_date"),
                "fault": f"if(price_fault is null, {NO_FINDING}, {_MISPRICED})",
            },
            prepare=with_fault,
        ),
        "transfer_reversals": Side({"kind": "'reversal'", **_OWN, "value_date": "value_date", "reverses": "reverses"}),
        # Others write to this topic as well: the source shows whether it is transform's
        UNDECODABLE: unreadable("topic = 'ledger.transfers' and source_topic = 'payments.accepted'"),
    },
    agreements={
        "transfer": Agreement(("payment",), intake.PAYMENT),
        "reversal": Agreement(("reversal",), intake.REVERSAL),
    },
    money=("currency", "amount_minor"),
)

_METRICS = {"transfers": "count_if(c_fresh and c_kind in ('transfer', 'reversal'))"}


def check(night: Night) -> Checked:
    """Compare each accepted payment or reversal with its transfer."""
    joined = links.join(night, LINK, _METRICS)
    settled = settle(night, LINK, joined, hidden(night, LINK, joined))
    return Checked(settled.breaks, {**joined.metrics, **settled.figures}, settled.in_flight, settled.carry)
