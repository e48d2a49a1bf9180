"""Each debit posting and its credit leg: siblings in one transaction, so both are visible or neither (I4, I7).

They are in different topics and on any two partitions, and name the same record of ledger.transfers as their source.
The ledger's own link checks the outcome of that record and of the credit leg.

A posting's entries are judged row by row: amounts and currencies, and whether they are booked as the ledger books them.
Entries that are booked right sum to 0 in each currency and touch house accounts of the posting's own
partition only, by their very form. The sums are computed for the others alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark.history import bounds_of, made_from
from spark.links import (
    AHEAD,
    MISMATCH,
    MISSING,
    ORIGINS,
    Agreement,
    Joined,
    Link,
    Side,
    agreeing,
    differing,
    judged,
    numbered,
    paired,
    rows,
    unchanged,
    unreadable,
)
from spark.night import (
    JUDGED,
    NO_FINDING,
    Checked,
    Kind,
    Night,
    all_breaks,
    all_findings,
    breaks,
    by_partition,
    finding,
    is_late,
    union,
)
from spark.places import Log, named, partition_of
from spark.schemas import UNDECODABLE
from spark.settling import (
    PARENTLESS,
    TORN,
    hidden_posting,
    keys_of,
    last_seen,
    looked_up,
    marks_to_carry,
    orphans,
    parentless_state,
    posting_marks,
    whole_rows,
    without_parent,
)

BALANCED: Final = "balanced"
BOOKED: Final = "entries"

_MONEY = "decimal(38,0)"
_SUMS = f"""filter(
    transform(array_distinct(entries.currency), code -> named_struct('currency', code, 'total', aggregate(
        filter(entries, one -> one.currency = code), cast(0 as {_MONEY}),
        (total, one) -> cast(total + one.amount_minor as {_MONEY})))),
    summed -> summed.total <> 0)"""
_FOREIGN = """filter(entries, one -> instr(one.account, '@') > 0
    and not endswith(one.account, concat('@', partition)))"""


def _first(account: str) -> str:
    return f"get(filter(entries, one -> one.account = {account}), 0)"


def _entry(account: str, currency: str, amount: str) -> str:
    return f"named_struct('account', {account}, 'currency', {currency}, 'amount_minor', {amount})"


def _house(name: str) -> str:
    return f"concat('{name}@', partition)"


def _at(index: int, account: str) -> str:
    """Return the entry on an account: where the ledger puts it, else the first one on it."""
    return f"if(get(entries, {index}).account = {account}, get(entries, {index}), {_first(account)})"


def _negated(amount: str) -> str:
    """Return null for a number without an opposite in 64 bits."""
    return f"try_subtract(0L, {amount})"


def with_amounts(postings: DataFrame) -> DataFrame:
    """Return rows of `postings` with the amounts of their entries.

    Columns: those of the table; `amount`, `currency`, what the debtor paid without the fee, or the creditor received;
    `credit`, `credit_currency`, what a debit leg put in transit; `fault`, a finding or null.
    """
    credited = f"coalesce({_at(1, 'creditor')}, {_first(_house('suspense'))})"
    named = postings.selectExpr(
        "*",
        f"if(leg = 'debit', {_at(0, 'debtor')}, {credited}) as own",
        f"if(leg = 'debit', {_at(1, _house('in-transit'))}, {_at(0, _house('in-transit'))}) as transit",
    )
    amounts = named.selectExpr(
        "*",
        f"if(leg = 'debit', try_subtract({_negated('own.amount_minor')}, fee_minor), own.amount_minor) as amount",
        "own.currency as currency",
        "if(leg = 'debit', transit.amount_minor, null) as credit",
        "if(leg = 'debit', transit.currency, null) as credit_currency",
    )
    return amounts.selectExpr("*", f"if({_booked()}, {NO_FINDING}, {_fault()}) as fault")


def _booked() -> str:
    """Whether the entries are those that the ledger books, in any order. A reversal must only balance here."""
    fee = f"if(fee_minor = 0, array(), array({_entry(_house('fees'), 'currency', 'fee_minor')}))"
    bought = _entry("concat('fx:', currency, '@', partition)", "currency", "amount")
    sold = _entry("concat('fx:', credit_currency, '@', partition)", "credit_currency", _negated("credit"))
    debit = f"concat(array(own, transit), {fee}, if(currency = credit_currency, array(), array({bought}, {sold})))"
    same = "(currency <> credit_currency or amount = credit)"
    sent = _entry(_house("in-transit"), "currency", _negated("amount"))
    credit = f"array({sent}, own)"
    return f"""coalesce(case
        when leg = 'debit' and reversal then size({_SUMS}) = 0 and size({_FOREIGN}) = 0
        when leg = 'debit' then {same} and {_same_entries(debit)}
        else {_same_entries(credit)} end, false)"""


def _same_entries(right: str) -> str:
    return f"(entries <=> {right} or array_sort(entries) <=> array_sort({right}))"


def _fault() -> str:
    summed = "concat_ws(', ', transform(" + _SUMS + ", one -> concat(one.total, ' ', one.currency)))"
    foreign = "concat_ws(', ', transform(" + _FOREIGN + ", one -> one.account))"
    unbalanced = finding(Kind.AMOUNT, BALANCED, "its entries sum to {sums}", sums=summed)
    elsewhere = finding(
        Kind.AMOUNT, BALANCED, "on partition {number} it books to {foreign}", number="partition", foreign=foreign
    )
    otherwise = finding(Kind.AMOUNT, BOOKED, "no leg is booked like this: {entries}", entries="to_json(entries)")
    return f"if(size({_SUMS}) > 0, {unbalanced}, if(size({_FOREIGN}) > 0, {elsewhere}, {otherwise}))"


_SAME = unchanged("debtor creditor value_date reversal")
_TOPIC = "ledger.transfers"

LINK = Link(
    name="legs",
    check="debits:credit-legs",
    service="ledger",
    source=_TOPIC,
    fields={
        **dict.fromkeys(("debtor", "creditor", "value_date", "currency"), "string"),
        "reversal": "boolean",
        "amount": "bigint",
    },
    parents={
        "postings": Side(
            {"kind": "'debit'", **_SAME, "amount": "credit", "currency": "credit_currency"},
            where="leg = 'debit'",
            prepare=with_amounts,
        ),
        UNDECODABLE: unreadable("topic = 'ledger.postings'"),
    },
    children={
        "credit_legs": Side({"kind": "'credit leg'", **_SAME, "amount": "amount_minor", "currency": "currency"}),
        UNDECODABLE: unreadable(f"topic = '{_TOPIC}' and source_topic = '{_TOPIC}'"),
    },
    agreements={
        "credit leg": Agreement(
            ("debit",),
            ("payment_id", "debtor", "creditor", "amount", "currency", "value_date", "reversal"),
            # A house account names the partition that it lives on
            "instr(c_creditor, '@') = 0 or endswith(c_creditor, concat('@', c_partition))",
            "concat(c_creditor, ' does not live on partition ', c_partition)",
        )
    },
    money=("currency", "amount"),
)
_METRICS = {"credit_legs": "count_if(c_fresh and c_kind = 'credit leg')"}


def check(night: Night) -> Checked:
    """Compare each debit posting with its credit leg, and each credit leg with its debit posting."""
    joined = _join(night)
    leg_hidden, posting_hidden = _hidden_leg(night, joined), hidden_posting(night, LINK, joined, _TOPIC)
    before_leg = joined.rows(MISSING, where=leg_hidden)
    before_posting = joined.rows(AHEAD, PARENTLESS, where=f"state = '{AHEAD}' or {posting_hidden}")
    legs = 0 if leg_hidden == "false" else before_leg.count()
    postings = joined.count(AHEAD) if posting_hidden == "false" else before_posting.count()
    legless = orphaned = None
    # An unreadable row is judged at once, and not carried: the keys are of the first table
    parents = [keys_of(before_leg, "p", "false")] if legs else []
    children = [keys_of(before_posting, "c", "false")] if postings else []
    if joined.count(MISSING) > legs:
        legless = _without_leg(night, joined.rows(MISSING, where=f"not {leg_hidden}")).persist()
        parents.append(keys_of(legless, "p", "true"))
    if joined.count(PARENTLESS) + joined.count(AHEAD) > postings:
        orphaned = looked_up(night, LINK, joined, posting_hidden).persist()
        children.append(keys_of(orphaned.where(TORN), "c", "true"))
    return Checked(
        all_breaks(_breaks(joined, legless, orphaned)),
        dict(joined.metrics),
        {"credit_legs": legs, "debit_postings": postings},
        {
            **_carry(night, "parents", parents),
            **_carry(night, "children", children),
            **marks_to_carry(night, f"{LINK.name}_marks", joined.marks, _logs(night)),
        },
    )


def _join(night: Night) -> Joined:
    log = Log(night.manifest, _TOPIC)
    parents = rows(night, LINK, LINK.parents, "parents", log.source_or_own())
    children = rows(night, LINK, LINK.children, "children", log.source_or_own())
    agreed = agreeing(LINK)
    state = f"""case
        when c_at is null and (p_at < 0 or p_kind = '{UNDECODABLE}') then null
        when c_at is null then '{MISSING}'
        when p_at is null and c_kind = '{UNDECODABLE}' then null
        when p_at is null then {parentless_state(log, settled=night.manifest.settled)}
        else '{MISMATCH}' end"""
    wrong = {
        "c_nth > 1": finding(Kind.DUPLICATE, LINK.check, "{source} has one before it", source=named(_TOPIC, "c_at")),
        "not (p_origin <=> c_origin)": finding(
            Kind.ORPHAN, LINK.check, "its origin is {own}, its posting has {other}", **ORIGINS
        ),
        f"not {agreed}": finding(Kind.AMOUNT, LINK.check, "{differing}", differing=differing(LINK)),
    }
    joined = judged(
        night,
        paired(parents, numbered(children), how="full"),
        _METRICS,
        posting_marks(night, "p_at"),
        matches=f"c_nth = 1 and p_origin <=> c_origin and {agreed}",
        state=state,
        found=f"if(p_at is not null and c_at is not null, {all_findings(wrong)}, null)",
    )
    return replace(joined, marks={**joined.marks, **_seen(night, children)})


def _seen(night: Night, children: DataFrame) -> dict[tuple[int, int], int]:
    """Return the last source in each partition that each partition's credit legs were seen to have.

    One aggregate for each pair of partitions would be 65,536 of them where there are 256.
    """
    if not any(log.unstable for log in _logs(night)):
        return {}  # nothing is hidden, and no later run needs them
    source = F.expr(partition_of("at")).alias("source")
    rows = children.where("at >= 0").groupBy(source, "partition").agg(F.max("at").alias("at")).collect()
    return {(row["source"], row["partition"]): row["at"] for row in rows}


def _logs(night: Night) -> list[Log]:
    """Return the logs that the marks are of."""
    return [Log(night.manifest, topic) for topic in (_TOPIC, "ledger.postings")]


def _hidden_leg(night: Night, joined: Joined) -> str:
    """Whether a debit posting's credit leg may be above the cut: it may be on any partition."""
    log = Log(night.manifest, _TOPIC)
    if not log.unstable or not joined.count(MISSING):
        return "false"
    last = last_seen(night, f"{LINK.name}_marks", joined.marks)
    bounds = {source: min(last.get((source, number), -1) for number in log.unstable) for source in log.partitions}
    above = f"coalesce(p_at > {by_partition(partition_of('p_at'), bounds)}, false)"
    return f"({above} and not p_{JUDGED} and not {is_late(night, 'ledger.postings', 'p_partition', 'p_offset')})"


def _breaks(joined: Joined, legless: DataFrame | None, orphaned: DataFrame | None) -> list[DataFrame]:
    found = orphans(LINK, joined, f"'{_TOPIC}'")
    leg = (f"'{_TOPIC}'", "c_partition", "c_offset", "c_payment_id")
    if joined.count(MISMATCH):
        wrong = joined.rows(MISMATCH).selectExpr("*", "explode(found) as one")
        found.append(breaks(wrong, "one", *leg, amount=LINK.amount("c")))
    if legless is not None:
        torn = finding(Kind.TORN, LINK.check, "its credit leg is not there")
        posting = ("'ledger.postings'", "p_partition", "p_offset", "p_payment_id")
        found.append(breaks(legless, torn, *posting, amount=LINK.amount("p"), rechecked="true"))
    if orphaned is not None:
        again = finding(
            Kind.DUPLICATE, LINK.check, "{source} had its own in an earlier cut", source=named(_TOPIC, "c_at")
        )
        one = f"if(p_at is null, {without_parent(LINK, 'its debit posting')}, {again}) as one"
        found.append(breaks(orphaned.selectExpr("*", one), "one", *leg, amount=LINK.amount("c"), rechecked=TORN))
    return found


def _without_leg(night: Night, postings: DataFrame) -> DataFrame:
    """Return debit postings without a credit leg in any run. A duplicate may have had it earlier."""
    keys = postings.selectExpr("p_at as at")
    source = Log(night.manifest, _TOPIC).source()
    before = made_from(night, "credit_legs", _TOPIC, bounds_of(keys))
    legs = before.selectExpr(f"{source} as known")
    return postings.join(legs, on=postings["p_at"] == legs["known"], how="left_anti")


def _carry(night: Night, role: str, keys: Sequence[DataFrame]) -> dict[str, DataFrame]:
    if not keys:
        return {}
    sides = LINK.parents if role == "parents" else LINK.children
    table = next(iter(sides))
    name = f"{LINK.name}_{role}_{table}"
    return {name: whole_rows(night, table, name, sides[table].where, union(keys))}
