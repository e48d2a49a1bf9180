"""A posting's entries: amounts and currencies, and whether they are booked as the ledger books them.

Each row is judged by itself.

Invariant: entries that are booked right sum to 0 in each currency and touch house accounts of the posting's own
partition only, by their very form. The sums are computed for the others alone.
"""

from typing import Final

from pyspark.sql import DataFrame

from spark.night import NO_FINDING, Kind, finding

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
        when leg = 'debit' then {same} and {_alike(debit)}
        else {_alike(credit)} end, false)"""


def _alike(right: str) -> str:
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
