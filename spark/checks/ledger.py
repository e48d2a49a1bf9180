"""The ledger's outcome of each record of ledger.transfers: one posting or decline, or an account event (I2, I3, I8).

The entries of each posting are judged by themselves (`entries`). A reversal is compared with the posting that it
reverses (`spark.checks.reversals`), and a payment with others of its identity (`identities`).

An operator's command without an outcome is right if it changed nothing: the ledger posts only changes. An instruction
of payments.raw to open an account has an account event or a decline in any case. The terms in force are those of the
account's last event before. An account without any is open, without an overdraft, a house account without a limit.
Whether it existed already, only postings would show: an opening with just these terms may be posted or not.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.transfers import DeclineReason
from spark import links
from spark.checks import repeats, reversals
from spark.checks.legs import with_amounts
from spark.decisions import cover
from spark.decisions.owners import with_owners
from spark.history import whole
from spark.links import OPTIONAL, Agreement, Joined, Link, Side, unchanged, unreadable
from spark.night import Checked, Kind, Night, all_breaks, breaks, finding, union
from spark.ownership import DIGEST, OWNER, with_clients
from spark.places import place
from spark.schemas import UNDECODABLE
from spark.settling import may_be_above_cut, settle

_TERMS = "terms"
_COMMANDED: Final = "from_json(p_command, 'owner string, expected_version bigint')"
_UNCHANGED = f"""case
    when {_COMMANDED}.expected_version <> coalesce(last.version, 0L) then false
    when last is null then p_kind = 'opening' and {_COMMANDED}.owner = '{OWNER}'
        and p_overdraft <=> if(instr(p_account, '@') > 0, cast(null as bigint), 0L)
    when last.closed then p_kind = 'closing'
    else p_kind = 'opening' and last.overdraft <=> p_overdraft
        and {_COMMANDED}.owner = coalesce(last_owner, '{OWNER}') end"""


def changed_terms(night: Night, joined: Joined, hidden: str) -> DataFrame | None:
    """Return account events without an outcome that would have changed the terms; None where there are none.

    They are rows of `joined.unmatched`. `hidden` says whether the outcome of a record may be above the cut.
    """
    if not joined.count(OPTIONAL):
        return None
    childless = joined.rows(OPTIONAL, where=f"not {hidden}").select(
        "p_partition", "p_offset", "p_kind", "p_account", "p_overdraft", "p_command"
    )
    known = _events(night, childless)
    wanted = known.join(childless.select("p_account"), on=known["account"] == F.col("p_account"), how="left_semi")
    before = (childless["p_account"] == wanted["account"]) & (childless["p_partition"] == wanted["partition"])
    earlier = before & (wanted["source_offset"] < childless["p_offset"])
    terms = F.when(F.col("account").isNotNull(), F.struct("closed", "overdraft", "version"))
    named = F.when(F.col("owner").isNotNull(), F.col("source_offset"))  # a closing names no owner
    last = (
        childless.join(wanted, on=earlier, how="left")
        .groupBy(*childless.columns)
        .agg(F.max_by(terms, "source_offset").alias("last"), F.max_by("owner", named).alias("last_owner"))
    )
    keys = last.where(f"not ({_UNCHANGED})").select("p_partition", "p_offset")
    every = joined.rows(OPTIONAL)
    rows = every.join(keys, on=["p_partition", "p_offset"], how="left_semi").select(*every.columns)
    rows = rows.persist()
    return None if rows.isEmpty() else rows


def _terms_breaks(rows: DataFrame) -> DataFrame:
    found = finding(
        Kind.MISSING,
        _TERMS,
        "the {event} of {account} changes its terms, and nothing came of it",
        event="p_kind",
        account="p_account",
    )
    return breaks(rows, found, "'ledger.transfers'", "p_partition", "p_offset", "null", rechecked="true")


def _events(night: Night, childless: DataFrame) -> DataFrame:
    """Return changes of terms: of this run, and of earlier ones the last before each of some account events.

    The run before left the newest terms of each account. Earlier ones are read only for an event that is older than
    these, such as one that has been a break since: on its partition alone, and of any age, as nothing bounds it.
    """
    newest, bounds = night.carried(cover.TERMS), whole(night, LEDGER_POSTINGS)
    parts = [_changes(night.new)]
    if newest is not None:
        columns = ("account", "partition", "since as source_offset", "closed", "overdraft", "owner", "version")
        parts.append(with_owners(newest).where("since is not null").selectExpr(*columns))
        younger = childless.join(newest, on=childless["p_account"] == newest["account"], how="inner").where(
            "partition <> p_partition or since >= p_offset"
        )
        numbers = {row["p_partition"] for row in younger.select("p_partition").distinct().collect()}
        bounds = {number: of for number, of in bounds.items() if number in numbers}
    if bounds:
        parts.append(_changes(lambda table: night.history(table, bounds)))
    return union(parts)


def _changes(read: Callable[[str], DataFrame]) -> DataFrame:
    parts = [
        read(table).select(
            *("account", "partition", "source_offset"),
            closed.alias("closed"),
            overdraft.alias("overdraft"),
            owner.alias("owner"),
            F.coalesce("version", F.lit(0)).alias("version"),
        )
        for table, closed, overdraft, owner in (
            ("accounts_opened", F.lit(False), F.col("overdraft_minor"), F.coalesce("owner", F.lit(OWNER))),
            ("accounts_closed", F.lit(True), F.lit(None).cast("bigint"), F.lit(None).cast("string")),
        )
    ]
    return union(parts)


_TEXTS = "debtor creditor value_date reference currency credit_currency rate reverses decline account command"
_NO_PAYMENT = {"payment_id": "cast(null as string)"}
_OWN_PLACE = place("partition", "offset")
_ORIGIN = place("origin_partition", "origin_offset")


# An operator's command is its own origin, unless it names another
_OF_COMMAND = {**_NO_PAYMENT, "origin": f"if(origin_topic is null, {_OWN_PLACE}, {_ORIGIN})", "account": "account"}
_OF_EVENT = {**_NO_PAYMENT, "origin": _ORIGIN, "account": "account"}
_SUBMITTED = {"submitted": DIGEST}
_OPENED = {
    "payment_id": "nullif(command_id, '')",
    "overdraft": "overdraft_minor",
    "command": "to_json(named_struct('owner', owner, 'expected_version', expected_version, 'command_id', command_id, "
    "'value_date', value_date))",
    **_SUBMITTED,
}

_PARENTS = {
    "transfers": Side(
        {
            "kind": "'transfer'",
            **unchanged("debtor creditor value_date reference currency credit_currency rate decline"),
            "amount": "amount_minor",
            "credit": "credit_minor",
            "fee": "fee_minor",
            "reversal": "false",
            **_SUBMITTED,
        }
    ),
    "transfer_reversals": Side(
        {"kind": "'reversal'", **unchanged("debtor value_date reference reverses"), "reversal": "true", **_SUBMITTED}
    ),
    "credit_legs": Side(
        {"kind": "'credit leg'", **unchanged("debtor creditor value_date currency reversal"), "amount": "amount_minor"}
    ),
    "account_openings": Side(
        {
            "kind": "if(origin_topic = 'payments.raw', 'instruction', 'opening')",
            **_OF_COMMAND,
            **_OPENED,
            "debtor": "account",
            "value_date": "value_date",
        }
    ),
    "account_closings": Side({"kind": "'closing'", **_OF_COMMAND}),
    UNDECODABLE: unreadable("topic = 'ledger.transfers'"),
}
_CHILDREN = {
    "postings": Side(
        {
            "kind": "if(leg = 'debit' and reversal, 'reversing debit', leg)",
            **unchanged("debtor creditor value_date reference currency credit_currency rate reverses reversal fault"),
            **unchanged("amount credit"),
            "fee": "fee_minor",
            **_SUBMITTED,
        },
        prepare=with_amounts,
    ),
    "declines": Side(
        {
            "kind": "if(opening, 'declined opening', 'decline')",
            "payment_id": "if(opening, nullif(payment_id, ''), payment_id)",
            "origin": f"if(opening or origin_topic = 'payments.raw', {_ORIGIN}, null)",
            **unchanged("debtor value_date reversal"),
            "decline": "reason",
            **_SUBMITTED,
        }
    ),
    "accounts_opened": Side({"kind": "'opened'", **_OF_EVENT, **_OPENED}),
    "accounts_closed": Side({"kind": "'closed'", **_OF_EVENT}),
    UNDECODABLE: unreadable("topic = 'ledger.postings'"),
}

_OF_REVERSALS = f"c_decline in ('{DeclineReason.ORIGINAL_NOT_FOUND.value}', '{DeclineReason.ALREADY_REVERSED.value}')"
_ALLOWED = f"""coalesce(case
    when c_decline = '{DeclineReason.NOT_AUTHORISED.value}' then true
    when p_kind = 'reversal' then {_OF_REVERSALS}
    when p_decline is not null then c_decline = p_decline
    else c_decline = '{DeclineReason.DEBTOR_CLOSED.value}'
        or c_decline = '{DeclineReason.INSUFFICIENT_FUNDS.value}' and instr(p_debtor, '@') = 0 end, false)"""

_OF_OPENINGS = f"""coalesce(c_decline = '{DeclineReason.STALE_VERSION.value}'
    or c_decline = '{DeclineReason.NOT_AUTHORISED.value}' and p_kind = 'instruction', false)"""

LINK = Link(
    name="ledger",
    check="transfers:postings",
    service="ledger",
    source="ledger.transfers",
    fields={
        **dict.fromkeys(_TEXTS.split(), "string"),
        **dict.fromkeys(("amount", "credit", "fee", "overdraft", "submitted"), "bigint"),
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
            has_client=True,
        ),
        "reversing debit": Agreement(
            ("reversal",),
            ("payment_id", "debtor", "value_date", "reference", "reverses"),
            "c_fee = 0 and c_rate is null",
            "'a reversal has no price'",
            has_client=True,
        ),
        "credit": Agreement(
            ("credit leg",),
            ("payment_id", "debtor", "creditor", "value_date", "amount", "currency", "reversal"),
            "c_fee = 0 and c_rate is null and c_reference = '' and c_reverses is null and c_submitted is null",
            "'a credit leg has no price, no reference, no client, and reverses nothing by itself'",
        ),
        "decline": Agreement(
            ("transfer", "reversal"),
            ("payment_id", "debtor", "value_date", "reversal"),
            _ALLOWED,
            "concat('declined as ', coalesce(c_decline, 'nothing'), ', ordered ', coalesce(p_decline, 'to be booked'))",
            has_client=True,
        ),
        "declined opening": Agreement(
            ("instruction", "opening"),
            ("payment_id", "debtor", "value_date"),
            _OF_OPENINGS,
            "concat('an opening declined as ', coalesce(c_decline, 'nothing'))",
            has_client=True,
        ),
        "opened": Agreement(("instruction", "opening"), ("account", "overdraft", "command"), has_client=True),
        "closed": Agreement(("closing",), ("account",)),
    },
    optional=("opening", "closing"),
    money=("currency", "amount"),
)

_METRICS = {
    "postings": "count_if(c_fresh and c_kind in ('debit', 'reversing debit', 'credit'))",
    "declines": "count_if(c_fresh and c_kind in ('decline', 'declined opening'))",
    "reversals": "count_if(c_fresh and c_kind = 'reversing debit')",
}


def check(night: Night) -> Checked:
    """Compare each record of ledger.transfers with the ledger's postings."""
    joined = links.join(night, with_clients(night, LINK, effective=True), _METRICS)
    terms = changed_terms(night, joined, may_be_above_cut(night, LINK, joined))
    settled = settle(night, LINK, joined, terms)
    further = [
        reversals.check(night, joined.metrics["reversals"]),
        repeats.check_identities(night),
    ]
    carry = {name: frame for checked in (settled, *further) for name, frame in checked.carry.items()}
    return Checked(
        all_breaks(
            [
                settled.breaks,
                *(checked.breaks for checked in further),
                *([] if terms is None else [_terms_breaks(terms)]),
            ],
        ),
        {**joined.metrics, **settled.figures},
        settled.in_flight,
        carry,
    )
