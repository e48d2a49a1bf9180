"""What the ledger made of each record of ledger.transfers: one posting or decline, or an account event (I2, I3, I8).

What the entries say is judged on each posting by itself (`entries`). A reversal is held against what it reverses
(`reversals`), a payment against others of its identity (`identities`), an account event that nothing came of against
the account's terms (`terms`).
"""

from shared.events.transfers import DeclineReason
from spark import links
from spark.agreements import Agreement, Link, Side
from spark.breaks import together
from spark.checks import identities, reversals, terms
from spark.checks.entries import with_amounts
from spark.night import Checked, Night
from spark.places import place
from spark.schemas import UNDECODABLE
from spark.settling import hidden, settle

_TEXTS = "debtor creditor value_date reference currency credit_currency rate reverses decline account"
_UNREAD = {"kind": f"'{UNDECODABLE}'", "payment_id": "cast(null as string)"}
_NO_PAYMENT = {"payment_id": "cast(null as string)"}
_OWN_PLACE = place("partition", "offset")
_ORIGIN = place("origin_partition", "origin_offset")


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


# An operator's command is its own origin, unless it names another
_OF_COMMAND = {**_NO_PAYMENT, "origin": f"if(origin_topic is null, {_OWN_PLACE}, {_ORIGIN})", "account": "account"}
_OF_EVENT = {**_NO_PAYMENT, "origin": _ORIGIN, "account": "account"}

_PARENTS = {
    "transfers": Side(
        {
            "kind": "'transfer'",
            **_same("debtor creditor value_date reference currency credit_currency rate decline"),
            "amount": "amount_minor",
            "credit": "credit_minor",
            "fee": "fee_minor",
            "reversal": "false",
        }
    ),
    "transfer_reversals": Side(
        {"kind": "'reversal'", **_same("debtor value_date reference reverses"), "reversal": "true"}
    ),
    "credit_legs": Side(
        {"kind": "'credit leg'", **_same("debtor creditor value_date currency reversal"), "amount": "amount_minor"}
    ),
    "account_openings": Side({"kind": "'opening'", **_OF_COMMAND, "overdraft": "overdraft_minor"}),
    "account_closings": Side({"kind": "'closing'", **_OF_COMMAND}),
    UNDECODABLE: Side(_UNREAD, where="topic = 'ledger.transfers'"),
}
_CHILDREN = {
    "postings": Side(
        {
            "kind": "if(leg = 'debit' and reversal, 'reversing debit', leg)",
            **_same("debtor creditor value_date reference currency credit_currency rate reverses reversal fault"),
            **_same("amount credit"),
            "fee": "fee_minor",
        },
        prepare=with_amounts,
    ),
    "declines": Side({"kind": "'decline'", **_same("debtor value_date reversal"), "decline": "reason"}),
    "accounts_opened": Side({"kind": "'opened'", **_OF_EVENT, "overdraft": "overdraft_minor"}),
    "accounts_closed": Side({"kind": "'closed'", **_OF_EVENT}),
    UNDECODABLE: Side(_UNREAD, where="topic = 'ledger.postings'"),
}

_OF_REVERSALS = f"c_decline in ('{DeclineReason.ORIGINAL_NOT_FOUND.value}', '{DeclineReason.ALREADY_REVERSED.value}')"
_ALLOWED = f"""coalesce(case
    when p_kind = 'reversal' then {_OF_REVERSALS}
    when p_decline is not null then c_decline = p_decline
    else c_decline = '{DeclineReason.DEBTOR_CLOSED.value}'
        or c_decline = '{DeclineReason.INSUFFICIENT_FUNDS.value}' and instr(p_debtor, '@') = 0 end, false)"""

LINK = Link(
    name="ledger",
    check="transfers:postings",
    service="ledger",
    source="ledger.transfers",
    fields={
        **dict.fromkeys(_TEXTS.split(), "string"),
        **dict.fromkeys(("amount", "credit", "fee", "overdraft"), "bigint"),
        "reversal": "boolean",
    },
    parents=_PARENTS,
    children=_CHILDREN,
    agreements={
        "debit": Agreement(
            ("transfer",),
            (
                *("payment_id", "debtor", "creditor", "value_date", "reference", "amount", "currency"),
                *("credit", "credit_currency", "fee", "rate", "reverses", "decline"),
            ),
        ),
        "reversing debit": Agreement(
            ("reversal",),
            ("payment_id", "debtor", "value_date", "reference", "reverses"),
            "c_fee = 0 and c_rate is null",
            "'a reversal has no price'",
        ),
        "credit": Agreement(
            ("credit leg",),
            ("payment_id", "debtor", "creditor", "value_date", "amount", "currency", "reversal"),
            "c_fee = 0 and c_rate is null and c_reference = '' and c_reverses is null",
            "'a credit leg has no price, no reference and reverses nothing by itself'",
        ),
        "decline": Agreement(
            ("transfer", "reversal"),
            ("payment_id", "debtor", "value_date", "reversal"),
            _ALLOWED,
            "concat('declined as ', coalesce(c_decline, 'nothing'), ', ordered ', coalesce(p_decline, 'to be booked'))",
        ),
        "opened": Agreement(("opening",), ("account", "overdraft")),
        "closed": Agreement(("closing",), ("account",)),
    },
    silent=("opening", "closing"),
)

_METRICS = {
    "postings": "count_if(c_fresh and c_kind in ('debit', 'reversing debit', 'credit'))",
    "declines": "count_if(c_fresh and c_kind = 'decline')",
    "reversals": "count_if(c_fresh and c_kind = 'reversing debit')",
}


def check(night: Night) -> Checked:
    """Hold each record of ledger.transfers against what the ledger posted."""
    joined = links.join(night, LINK, _METRICS)
    unseen = hidden(night, LINK, joined)
    settled = settle(night, LINK, joined, unseen)
    further = [
        terms.check(night, joined, unseen),
        reversals.check(night, joined.metrics["reversals"]),
        identities.check(night),
    ]
    carry = {name: frame for checked in (settled, *further) for name, frame in checked.carry.items()}
    return Checked(
        together(night.spark, [settled.breaks, *(checked.breaks for checked in further)]),
        {**joined.metrics, **settled.figures},
        settled.in_flight,
        carry,
    )
