"""The ledger's decisions on clients, cover, closed accounts and openings, taken again account by account (I3).

An account lives on one partition, and the ledger decides the records of ledger.transfers there in their order. So the
fold of an account's earlier postings and account events, by their sources, is the state that a record was decided on.
A record that a repair wrote later takes the place that it should have had. Terms that it gives replace those that were
written before it: a repair decides an account event by the terms of its own time. Whether the ledger knew the record
before is not known. So a fault of a repaired record is open. So is a fault of a decision that the ledger took on the
same account after the record's place and before the repair.

A posting names for whom it counts, which its link compares with the order. A house account's debits need no state.

Invariant: a run reads its own records, and the balances and terms that the run before left. A decision is a break as
long as a posting of the account that the ledger knew is missing: it is carried, and ends when that posting comes.
"""

from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.transfers import DeclineReason
from spark.balances import visible
from spark.decisions import owners
from spark.decisions.owners import (
    AUTHORISED,
    FAULT_OF_DEBIT,
    FAULT_OF_EVENT,
    HAS_SCOPE,
    IS_HOUSE,
    OWNED_BY,
    REASON_OF_OPENING,
    SHOWN,
    TERMS_TYPE,
    client_of,
    terms_of,
    with_owners,
)
from spark.decisions.reference import decided
from spark.history import whole
from spark.night import Amount, Night, by_partition, union, with_carried
from spark.ownership import OWNER, counts, raw_from
from spark.places import PLACE, Log, bound, home, sourced, unstable, visible_up_to
from spark.schemas import tables_of

CHECK: Final = "cover"
TERMS: Final = "account_terms"
JUDGED: Final = "decisions_on_cover"
_MONEY: Final = "decimal(38,0)"
_COLUMNS: Final = {
    "account": "string",
    "currency": "string",
    "at": "bigint",  # offset of the source in ledger.transfers; -1 for what was carried
    "partition": "int",
    "offset": "bigint",
    "position": "int",  # of rows of one record
    "act": "string",  # decision or state to judge, or `terms`; null for nothing but a movement
    "amount": _MONEY,  # that was booked, or the cost of what was declined
    "moves": "boolean",  # whether the amount is a movement
    "terms": TERMS_TYPE,  # given, asked for, or those of a state
    "reason": "string",
    "suspended": "boolean",  # whether suspense took the account's place
    "repaired": "boolean",  # whether a repair wrote it
    "payment_id": "string",
    "client": "string",  # of `owners.client_of`; null for terms that are not judged
}
_DECIDES: Final = "coalesce(act in ('debit', 'credit', 'reversal', 'decline', 'refusal', 'opening'), false)"
# Of the house, only what needs no state is wrong by itself: without terms, an account is open
_OF_HOUSE: Final = f"""{_DECIDES} and (not endswith(account, concat('@', partition))
    or act in ('credit', 'reversal') and suspended
    or act = 'decline' and reason = '{DeclineReason.DEBTOR_CLOSED.value}'
    or act <> 'credit' and {HAS_SCOPE} = coalesce(reason = '{DeclineReason.NOT_AUTHORISED.value}', false))
    or act = 'state' and (terms.closed or terms.owner <> '{OWNER}' or terms.version <> 0)"""


class Judged(NamedTuple):
    """The result of the check."""

    wrong: DataFrame  # decisions that the fold does not lead to; to be kept, and carried
    facts: DataFrame  # BREAKS of accounts elsewhere than at home, of altered terms, of ledger.accounts; what is open
    terms: DataFrame  # the newest of each account; carried as TERMS


def check(night: Night) -> Judged:
    """Judge each posting, decline, account event and account state of this run."""
    terms = _terms(night)
    rows = union([terms, _balances(night), _postings(night), _declines(night), _states(night)])
    # The house has no limit, and its accounts have most of the entries: they matter where terms were set, or elsewhere
    house = terms.where(IS_HOUSE).selectExpr("account as with_terms").distinct()
    known = (
        rows.join(F.broadcast(house), on=rows["account"] == house["with_terms"], how="left")
        .where(f"not ({IS_HOUSE}) or with_terms is not null or {_OF_HOUSE}")
        .drop("with_terms")
    )
    folded = _folded(known, len(night.manifest.topics[LEDGER_TRANSFERS]))
    fault = _FAULT.format(former=_former(night, terms))
    judged = folded.where("act is not null and (act <> 'terms' or client is not null)").selectExpr(
        "*", f"{fault} as fault", f"{_OF_TERMS} as of_terms", f"{_ELSEWHERE} as elsewhere", f"{_ALTERED} as altered"
    )
    found = judged.where("coalesce(fault, elsewhere, altered) is not null")
    # Few: kept, so that the fold is made once
    judged = found.selectExpr("*", f"{_MAY_BE_RIGHT} as may_be_right").persist()
    wrong = judged.where("fault is not null and not may_be_right").select(*_KEPT)
    before = night.carried(JUDGED)
    if before is not None:
        wrong = union([wrong, _still(before, known)])
    newest = owners.newest(night, terms, night.carried(TERMS)).persist()
    return Judged(wrong, union([_facts(judged), owners.check_listed(night, newest)]), newest)


def _former(night: Night, terms: DataFrame) -> str:
    """Whether a former ledger may have written an account event: payments of any partition need no client.

    No ledger was at work when ownership came into force. So none of them wrote what follows, in ledger.transfers, a
    payment that needs a client.
    """
    needed = raw_from(night)
    if needed and not any(needed.values()):
        return "false"
    if not needed or terms.where("client is not null and terms.version = 0").isEmpty():
        return "true"
    owned = f"origin_topic = '{PAYMENTS_RAW}' and {counts(night, 'origin_partition', 'origin_offset')}"
    earlier = whole(night, LEDGER_TRANSFERS)
    rows = union(
        [
            frame.where(owned).select("partition", "offset")
            for table in tables_of(LEDGER_TRANSFERS)
            for frame in (night.new(table.name), night.history(table.name, earlier))
        ]
    )
    first = {row[0]: row[1] for row in rows.groupBy("partition").agg(F.min("offset")).collect()}
    return f"coalesce(at < {by_partition('partition', first)}, true)"


def _folded(rows: DataFrame, partitions: int) -> DataFrame:
    """Add the state that each row was decided on, as `owners` names it, and the account's `home`.

    `balance` is that of the row's currency, with its own movement.
    """
    # A changelog record names the last transfer that it includes
    in_order = "order by at, act <=> 'state', offset, position rows between unbounded preceding and current row"
    of_currency = f"(partition by account, currency {in_order})"
    of_first = f"if({_DECIDES} and nth = 1, {home('account', partitions)}, null)"
    # Placed by account alone, and sorted once: what needs all currencies of an account finds them one after the other
    by_currency = rows.repartition("account").selectExpr(
        "*",
        f"sum(if(moves, amount, 0)) over {of_currency} as balance",
        f"count_if({_DECIDES}) over {of_currency} as nth",
    )
    by_account = by_currency.selectExpr(
        "*",
        # The last one to be written is in force, whatever its place
        "sort_array(collect_list(if(act = 'terms', struct(offset, at, terms), null)) over (partition by account))"
        " as given",
        f"collect_list({_REPAIR}) over (partition by account) as repairs",
        "min(if(moves, at, null)) over (partition by account) as moved_from",
        f"max({of_first}) over (partition by account) as home",
    )
    is_earlier = "one.at < at or one.at = at and (act <=> 'state' or one.offset < offset)"
    return by_account.selectExpr("*", f"filter(given, one -> {is_earlier}).terms as earlier").selectExpr(
        "*",
        "get(earlier, size(earlier) - 1) as before",
        "get(reverse(array_compact(earlier.owner)), 0) as owner",
        "size(earlier) > 0 or coalesce(moved_from < at, false) as known",
    )


_REPAIR: Final = """if(repaired and (moves or act = 'terms'),
    named_struct('at', at, 'offset', offset, 'gives_terms', act <=> 'terms', 'currency', currency, 'amount', amount),
    null)"""
_KEPT: Final = (
    *("partition", "offset", "at", "account", "act", "payment_id", "currency", "amount", "fault", "of_terms"),
)


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
            decided(rows.where("fault is not null and may_be_right"), CHECK, "fault", at=posted, open_="true"),
            decided(rows.where("elsewhere is not null"), "homes", "elsewhere", at=posted),
            decided(rows.where("altered is not null"), "terms", "altered", at=logged),
        ]
    )


def _rows(frame: DataFrame, **columns: str) -> DataFrame:
    texts = {name: f"cast({columns.get(name, 'null')} as {kind})" for name, kind in _COLUMNS.items()}
    return frame.selectExpr(*(f"{text} as {name}" for name, text in texts.items()))


_OWN: Final = {"partition": "partition", "offset": "offset", "at": "coalesce(source_offset, offset)"}
_REPAIRED: Final = "repair is not null"


def _terms(night: Night) -> DataFrame:
    """Return the terms that were carried, and each change of them in this run.

    Where no run left any, no earlier cut has any, unless a former version made its run: then all are read once.
    """
    before = night.carried(TERMS)
    since = {"since": _OWN["at"], "version": "coalesce(version, 0L)"}
    given = {
        "accounts_opened": terms_of(
            **since,
            closed="false",
            overdraft="overdraft_minor",
            owner=f"coalesce(owner, '{OWNER}')",
            expected="expected_version",
            instructed="origin_topic <=> 'payments.raw'",
        ),
        "accounts_closed": terms_of(**since, closed="true"),
    }
    parts = []
    for table, terms in given.items():
        by = client_of(night) if table == "accounts_opened" else f"'{OWNER}:house'"
        frames = [(night.new(table), by)]
        if before is None:
            frames.append((night.history(table, whole(night, LEDGER_POSTINGS)), "null"))
        of_event = {**_OWN, "account": "account", "act": "'terms'", "terms": terms, "repaired": _REPAIRED}
        parts += [_rows(frame, **of_event, client=client) for frame, client in frames]
    if before is not None:
        columns = {name: name for name in ("account", "partition", "offset")}
        left = with_owners(before).where("since is not null")
        names = {name: name for name in ("since", "closed", "overdraft", "owner", "version")}
        parts.append(_rows(left, **columns, terms=terms_of(**names), at="-1", act="'terms'"))
    return union(parts)


def _states(night: Night) -> DataFrame:
    """Return the account states of this run that only visible account events can have led to."""
    bounds = visible_up_to(night, LEDGER_POSTINGS, visible(night).postings if unstable(night, LEDGER_POSTINGS) else {})
    states = night.new("account_states").where("not deleted").where(sourced(night))
    followed = states.where(F.col("source_offset") <= bound(bounds))
    terms = terms_of(
        closed="closed",
        overdraft="overdraft_minor",
        owner=f"coalesce(owner, '{OWNER}')",
        version="coalesce(version, 0L)",
    )
    return _rows(followed, **_OWN, account="account", act="'state'", terms=terms)


def _balances(night: Night) -> DataFrame:
    before = night.carried("account_balances")
    if before is None:
        return _rows(night.spark.range(0))
    return _rows(
        before.where(f"not ({IS_HOUSE})"),
        account="account",
        currency="currency",
        partition="partition",
        at="-1",
        offset="-1",
        amount="closing",
        moves="true",
    )


def _postings(night: Night) -> DataFrame:
    """Return the movements of client accounts, and the decision of each posting with its account's movement.

    Where it moves several accounts or currencies, or none, the decision follows as a row of its own.
    """
    acting = night.new("postings").selectExpr(
        "*",
        "if(leg = 'debit', debtor, creditor) as acting",
        "filter(entries, one -> instr(one.account, '@') = 0) as moved",
        "exists(entries, one -> startswith(one.account, 'suspense@')) as suspended",
    )
    own = "get(filter(entries, one -> one.account = acting), 0)"
    decision = f"named_struct('account', acting, 'currency', {own}.currency, 'amount_minor', {own}.amount_minor)"
    exploded = acting.selectExpr("*", "size(moved) = 1 and get(moved, 0).account = acting as alone").selectExpr(
        "partition",
        "offset",
        "source_offset",
        "payment_id",
        "suspended",
        "repair",
        f"{client_of(night)} as client",
        "if(leg <> 'debit', 'credit', if(reversal, 'reversal', 'debit')) as act",
        "size(moved) as movements",
        "if(alone, 0, size(moved)) as decided",
        f"posexplode(if(alone, moved, concat(moved, array({decision})))) as (position, one)",
    )
    return _rows(
        exploded,
        **_OWN,
        account="one.account",
        currency="one.currency",
        amount="one.amount_minor",
        position="position",
        act="if(position = decided, act, null)",
        moves="position < movements",
        suspended="suspended",
        repaired=_REPAIRED,
        payment_id="payment_id",
        client="if(position = decided, client, null)",
    )


def _declines(night: Night) -> DataFrame:
    """Return declines: of payments that transform had priced with their cost, of openings with what they asked for."""
    source = Log(night.manifest, LEDGER_TRANSFERS).source()
    declines = night.new("declines").selectExpr(
        "*", f"{source} as ordered_at", f"{client_of(night)} as client", "coalesce(opening, false) as opens"
    )
    asked = terms_of(overdraft="overdraft_minor", owner=f"coalesce(owner, '{OWNER}')", expected="expected_version")
    costs = (
        _ordered(night, "transfers")
        .where("decline is null")
        .selectExpr(
            f"{PLACE} as at_place",
            "currency",
            f"cast(amount_minor as {_MONEY}) + fee_minor as cost",
            f"cast(null as {TERMS_TYPE}) as asked",
        )
    )
    openings = _ordered(night, "account_openings").selectExpr(
        f"{PLACE} as at_place",
        "cast(null as string) as currency",
        f"cast(null as {_MONEY}) as cost",
        f"cast({asked} as {TERMS_TYPE}) as asked",
    )
    ordered = costs.unionByName(openings)
    joined = declines.join(ordered, on=declines["ordered_at"] == ordered["at_place"], how="left")
    return _rows(
        joined.where("not opens or asked is not null"),
        **_OWN,
        account="debtor",
        currency="currency",
        amount="cost",
        act="case when opens then 'opening' when cost is null then 'refusal' else 'decline' end",
        terms="asked",
        reason="reason",
        repaired=_REPAIRED,
        payment_id="payment_id",
        client="client",
    )


def _ordered(night: Night, table: str) -> DataFrame:
    return union([frame for frame, _ in with_carried(night, table, f"ledger_parents_{table}")])


def _still(before: DataFrame, rows: DataFrame) -> DataFrame:
    """Return decisions of earlier runs that nothing explains which this run found to have come before them.

    Movements do, and account events; what terms alone decide, only these. A debit beyond the limit needs more of its
    currency. Decisions and states change no account.
    """
    earlier = rows.where("at >= 0 and (moves or act = 'terms')").selectExpr(
        "account as of_account",
        "at as earlier",
        "act <=> 'terms' as gives_terms",
        "if(amount > 0, currency, null) as covers",
    )
    # A former version left all as if movements decided them, and none as a debit
    absent = {"of_terms": "false", "act": "cast(null as string)"}
    decided_before = before.selectExpr(
        "*", *(f"{text} as {name}" for name, text in absent.items() if name not in before.columns)
    )
    own = decided_before["account"] == earlier["of_account"]
    explained = own & (earlier["earlier"] < decided_before["at"])
    covered = ~decided_before["act"].eqNullSafe("debit") | (earlier["covers"] == decided_before["currency"])
    enough = earlier["gives_terms"] | (~decided_before["of_terms"] & covered)
    return decided_before.join(earlier, on=explained & enough, how="left_anti").select(*_KEPT)


_CLOSED: Final = "coalesce(before.closed, false)"
_LIMIT: Final = (
    f"if({IS_HOUSE} or before is not null and before.overdraft is null, null, coalesce(before.overdraft, 0L))"
)
_REASON: Final = f"""case when not {AUTHORISED} then '{DeclineReason.NOT_AUTHORISED.value}'
    when {_CLOSED} then '{DeclineReason.DEBTOR_CLOSED.value}'
    when {_LIMIT} is null or balance - amount >= -{_LIMIT} then 'none'
    else '{DeclineReason.INSUFFICIENT_FUNDS.value}' end"""
_FAULT: Final = f"""case
    when act = 'terms' then {FAULT_OF_EVENT}
    when act in ('debit', 'reversal') and not {AUTHORISED} then {FAULT_OF_DEBIT}
    when act = 'debit' and {_CLOSED} then concat(account, ' was closed')
    when act = 'debit' and balance < -{_LIMIT}
        then concat('it leaves ', account, ' at ', balance, ' ', currency, ' minor units, and ', -{_LIMIT},
            ' is the limit')
    when act in ('credit', 'reversal') and suspended <> {_CLOSED}
        then concat(account, if({_CLOSED}, ' was closed: suspense', ' was open: the account'), ' takes the money')
    when act = 'decline' and reason <> {_REASON}
        then concat('declined for ', reason, '; the reason to decline it: ', {_REASON})
    when act = 'refusal' and {AUTHORISED} = (reason = '{DeclineReason.NOT_AUTHORISED.value}')
        then concat('declined for ', reason, '; submitted by ', {SHOWN}, ', and ', account, ' belongs to ', {OWNED_BY})
    when act = 'opening' and reason <> {REASON_OF_OPENING}
        then concat('declined for ', reason, '; the reason to decline it: ', {REASON_OF_OPENING}) end"""
_OF_TERMS: Final = f"""coalesce(act in ('debit', 'reversal') and not {AUTHORISED}
    or act = 'debit' and {_CLOSED}
    or act in ('credit', 'reversal') and suspended <> {_CLOSED}
    or act = 'terms' and not terms.closed and {REASON_OF_OPENING} = '{DeclineReason.NOT_AUTHORISED.value}', false)"""
"""Whether a fault follows from terms alone, whatever was booked."""
_WRITTEN_SINCE: Final = "one.at < at and one.offset > offset"
_UNSPENT: Final = f"""aggregate(filter(repairs, one -> {_WRITTEN_SINCE} and one.currency = currency and one.amount < 0),
    cast(balance as {_MONEY}), (total, one) -> cast(total - one.amount as {_MONEY}))"""
_MAY_BE_RIGHT: Final = f"""coalesce(repaired, false) or exists(repairs, one -> {_WRITTEN_SINCE} and one.gives_terms)
    or not of_terms and exists(repairs, one -> {_WRITTEN_SINCE}) and (act <> 'debit' or {_UNSPENT} >= -{_LIMIT})"""
"""Whether a repair wrote the record, or has written since what the ledger may or may not have known."""
_ELSEWHERE: Final = f"""if({_DECIDES} and partition <> if({IS_HOUSE},
    try_cast(substring_index(account, '@', -1) as int), home),
    concat(account, ' does not live on this partition'), null)"""
# Terms that were carried may be younger than a state that is landed late, and a repair younger than any
_ALTERED: Final = f"""if(act = 'state' and (before is null or at >= before.since)
    and not exists(repairs, one -> one.gives_terms and one.at <= at)
    and (terms.closed <> {_CLOSED} or terms.owner <> {OWNED_BY} or terms.version <> coalesce(before.version, 0L)
        or not terms.closed and not (terms.overdraft <=> if(before is null, 0L, before.overdraft))
            and not (before is null and {IS_HOUSE})),
    concat('closed ', terms.closed, ', owner ', terms.owner, ', version ', terms.version, ', overdraft ',
        coalesce(cast(terms.overdraft as string), 'unlimited'), ': no account event gave these terms'), null)"""
