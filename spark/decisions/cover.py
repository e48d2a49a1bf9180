"""The ledger's decisions on cover, closed accounts and declines, taken again account by account (I3).

An account lives on one partition, and the ledger decides the records of ledger.transfers there in their order. So the
fold of an account's earlier postings, by their sources, is the state that a posting or decline was decided on. A
posting that a repair wrote later takes the place that it should have had.

Invariant: a run reads its own records, and the balances and terms that the run before left. A decision is a break as
long as a posting of the account that the ledger knew is missing: it is carried, and ends when that posting comes.
"""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.transfers import DeclineReason
from spark.balances import visible
from spark.decisions.reference import decided
from spark.history import whole
from spark.night import Amount, Night, union, with_carried
from spark.places import PLACE, Log, bound, home, sourced, unstable, visible_up_to

CHECK: Final = "cover"
TERMS: Final = "account_terms"
JUDGED: Final = "decisions_on_cover"
_MONEY: Final = "decimal(38,0)"
_COLUMNS: Final = {
    "account": "string",
    "currency": "string",
    "at": "bigint",  # offset of the source in ledger.transfers; -1 for what was carried
    "since": "bigint",  # the same, of terms; of carried ones as well
    "partition": "int",
    "offset": "bigint",
    "position": "int",  # of rows of one record
    "act": "string",  # decision or state to judge, or `terms`; null for a movement
    "amount": _MONEY,  # movement, or cost of what was declined
    "closed": "boolean",
    "overdraft": "bigint",
    "reason": "string",
    "suspended": "boolean",
    "payment_id": "string",
}
_IS_HOUSE: Final = "instr(account, '@') > 0"
_DECIDES: Final = "coalesce(act in ('debit', 'credit', 'reversal', 'decline'), false)"


class Judged(NamedTuple):
    """The result of the check."""

    wrong: DataFrame  # decisions that the fold does not lead to; to be kept, and carried
    facts: DataFrame  # BREAKS of accounts elsewhere than at home, and of altered terms
    terms: DataFrame  # the newest of each account; carried as TERMS


def check(night: Night) -> Judged:
    """Judge each posting, decline and account state of this run."""
    terms = _terms(night)
    rows = union([terms, _balances(night), _postings(night), _declines(night), _states(night)])
    # The house has no limit, and its accounts have most of the entries: they matter where terms were set, or elsewhere
    house = terms.where(_IS_HOUSE).selectExpr("account as with_terms").distinct()
    known = (
        rows.join(F.broadcast(house), on=rows["account"] == house["with_terms"], how="left")
        .where(f"""not ({_IS_HOUSE}) or with_terms is not null
            or {_DECIDES} and not endswith(account, concat('@', partition))""")
        .drop("with_terms")
    )
    # A changelog record names the last transfer that it includes
    order = "at, coalesce(act = 'state', false), offset, position rows unbounded preceding"
    of_account = f"(partition by account order by {order})"
    partitions = len(night.manifest.topics[LEDGER_TRANSFERS])
    first = f"if({_DECIDES} and count_if({_DECIDES}) over {of_account} = 1, {home('account', partitions)}, null)"
    folded = (
        known.selectExpr(
            "*",
            f"last(if(act = 'terms', struct(closed, overdraft, since), null), true) over {of_account} as terms",
            f"{first} as home_of_first",
        )
        .selectExpr("*", f"max(home_of_first) over {of_account} as home")
        .selectExpr(
            "*", f"sum(if(act is null, amount, 0)) over (partition by account, currency order by {order}) as balance"
        )
    )
    judged = folded.where("act is not null and act <> 'terms'").selectExpr(
        "*", f"{_FAULT} as fault", f"{_ELSEWHERE} as elsewhere", f"{_ALTERED} as altered"
    )
    # Few: kept, so that the fold is made once
    judged = judged.where("coalesce(fault, elsewhere, altered) is not null").persist()
    wrong = judged.where("fault is not null").select(*_KEPT)
    before = night.carried(JUDGED)
    if before is not None:
        wrong = union([wrong, _still(before, known)])
    newest = terms.groupBy("account").agg(
        *(_newest(name) for name in ("partition", "since", "offset", "closed", "overdraft"))
    )
    return Judged(wrong, _facts(judged), newest)


_KEPT: Final = ("partition", "offset", "at", "account", "payment_id", "currency", "amount", "fault")


def findings(wrong: DataFrame) -> DataFrame:
    """Return BREAKS of what `check` found."""
    return decided(
        wrong,
        CHECK,
        "fault",
        at=(f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id"),
        amount=Amount("currency", "amount"),
        rechecked="true",
    )


def _facts(rows: DataFrame) -> DataFrame:
    posted = (f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id")
    logged = (f"'{LEDGER_BALANCES}'", "partition", "offset", "null")
    return union(
        [
            decided(rows.where("elsewhere is not null"), "homes", "elsewhere", at=posted),
            decided(rows.where("altered is not null"), "terms", "altered", at=logged),
        ]
    )


def _newest(name: str) -> Column:
    return F.max_by(name, F.struct("since", "offset")).alias(name)


def _rows(frame: DataFrame, **columns: str) -> DataFrame:
    texts = {name: f"cast({columns.get(name, 'null')} as {kind})" for name, kind in _COLUMNS.items()}
    return frame.selectExpr(*(f"{text} as {name}" for name, text in texts.items()))


_OWN: Final = {"partition": "partition", "offset": "offset", "at": "coalesce(source_offset, offset)"}


def _terms(night: Night) -> DataFrame:
    """Return the terms that were carried, and each change of them in this run.

    Where no run left any, no earlier cut has any, unless a former version made its run: then all are read once.
    """
    before = night.carried(TERMS)
    tables = (("accounts_opened", "false", "overdraft_minor"), ("accounts_closed", "true", "null"))
    parts = []
    for table, closed, overdraft in tables:
        frames = [night.new(table)]
        if before is None:
            frames.append(night.history(table, whole(night, LEDGER_POSTINGS)))
        parts += [
            _rows(
                frame,
                **_OWN,
                since="coalesce(source_offset, offset)",
                account="account",
                act="'terms'",
                closed=closed,
                overdraft=overdraft,
            )
            for frame in frames
        ]
    if before is not None:
        columns = {name: name for name in ("account", "partition", "offset", "since", "closed", "overdraft")}
        parts.append(_rows(before, **columns, at="-1", act="'terms'"))
    return union(parts)


def _states(night: Night) -> DataFrame:
    """Return the account states of this run that only visible account events can have led to."""
    bounds = visible_up_to(night, LEDGER_POSTINGS, visible(night).postings if unstable(night, LEDGER_POSTINGS) else {})
    states = night.new("account_states").where("not deleted").where(sourced(night))
    followed = states.where(F.col("source_offset") <= bound(bounds))
    return _rows(followed, **_OWN, account="account", act="'state'", closed="closed", overdraft="overdraft_minor")


def _balances(night: Night) -> DataFrame:
    before = night.carried("account_balances")
    if before is None:
        return _rows(night.spark.range(0))
    return _rows(
        before.where(f"not ({_IS_HOUSE})"),
        account="account",
        currency="currency",
        partition="partition",
        at="-1",
        offset="-1",
        amount="closing",
    )


def _postings(night: Night) -> DataFrame:
    """Return the movements of client accounts, and after them the decision of each posting."""
    acting = night.new("postings").selectExpr(
        "*",
        "if(leg = 'debit', debtor, creditor) as acting",
        "filter(entries, one -> instr(one.account, '@') = 0) as moved",
        "exists(entries, one -> startswith(one.account, 'suspense@')) as suspended",
    )
    own = "get(filter(entries, one -> one.account = acting), 0)"
    act = "if(leg <> 'debit', 'credit', if(reversal, 'reversal', 'debit'))"
    decision = f"named_struct('account', acting, 'currency', {own}.currency, 'amount_minor', {own}.amount_minor)"
    exploded = acting.selectExpr(
        "partition",
        "offset",
        "source_offset",
        "payment_id",
        "suspended",
        f"{act} as act",
        "size(moved) as decided",
        f"posexplode(concat(moved, array({decision}))) as (position, one)",
    )
    return _rows(
        exploded,
        **_OWN,
        account="one.account",
        currency="one.currency",
        amount="one.amount_minor",
        position="position",
        act="if(position = decided, act, null)",
        suspended="suspended",
        payment_id="payment_id",
    )


def _declines(night: Night) -> DataFrame:
    """Return declines of transfers that transform had priced, with their cost."""
    source = Log(night.manifest, LEDGER_TRANSFERS).source()
    declines = night.new("declines").where("not reversal").selectExpr("*", f"{source} as ordered_at")
    ordered = union([frame for frame, _ in with_carried(night, "transfers", "ledger_parents_transfers")])
    costs = ordered.where("decline is null").selectExpr(
        f"{PLACE} as at_place",
        "currency",
        f"cast(amount_minor as {_MONEY}) + fee_minor as cost",
    )
    joined = declines.join(costs, on=declines["ordered_at"] == costs["at_place"], how="inner")
    return _rows(
        joined,
        **_OWN,
        account="debtor",
        currency="currency",
        amount="cost",
        act="'decline'",
        reason="reason",
        payment_id="payment_id",
    )


def _still(before: DataFrame, rows: DataFrame) -> DataFrame:
    """Return decisions of earlier runs that no posting of this run explains."""
    earlier = rows.where("act is not null and at >= 0").selectExpr("account as of_account", "at as earlier")
    explained = (before["account"] == earlier["of_account"]) & (earlier["earlier"] < before["at"])
    return before.join(earlier, on=explained, how="left_anti").select(*_KEPT)


_CLOSED: Final = "coalesce(terms.closed, false)"
_LIMIT: Final = f"if({_IS_HOUSE} or terms is not null and terms.overdraft is null, null, coalesce(terms.overdraft, 0L))"
_REASON: Final = f"""case when {_CLOSED} then '{DeclineReason.DEBTOR_CLOSED.value}'
    when {_LIMIT} is null or balance - amount >= -{_LIMIT} then 'none'
    else '{DeclineReason.INSUFFICIENT_FUNDS.value}' end"""
_FAULT: Final = f"""case
    when act = 'debit' and {_CLOSED} then concat(account, ' was closed')
    when act = 'debit' and balance < -{_LIMIT}
        then concat('it leaves ', account, ' at ', balance, ' ', currency, ' minor units, and ', -{_LIMIT},
            ' is the limit')
    when act in ('credit', 'reversal') and suspended <> {_CLOSED}
        then concat(account, if({_CLOSED}, ' was closed: suspense', ' was open: the account'), ' takes the money')
    when act = 'decline' and reason <> {_REASON}
        then concat('declined for ', reason, '; the reason to decline it: ', {_REASON}) end"""
_ELSEWHERE: Final = f"""if({_DECIDES} and partition <> if({_IS_HOUSE},
    try_cast(substring_index(account, '@', -1) as int), home),
    concat(account, ' does not live on this partition'), null)"""
# Terms that were carried may be younger than a state that is landed late
_ALTERED: Final = f"""if(act = 'state' and (terms is null or at >= terms.since)
    and (closed <> {_CLOSED}
        or not closed and not (overdraft <=> if(terms is null, 0L, terms.overdraft))
            and not (terms is null and {_IS_HOUSE})),
    concat('closed ', closed, ', overdraft ', coalesce(cast(overdraft as string), 'unlimited'),
        ': no account event gave these terms'), null)"""
