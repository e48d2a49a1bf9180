"""Owners, terms and versions of accounts, and who may debit or open them: the ledger's rules on them (I3).

A client's keys debit its own accounts only, a house account needs the scope `house`. A client opens accounts for
itself, without an overdraft; that scope opens any.

ledger.accounts has a record for each account event, from the same transaction. It is compacted: its last record of an
account must have the account's newest terms.

Invariant: expressions here are on rows of `spark.decisions.cover`, where `before` has the terms before a row, `owner`
the last owner that was named, and `known` whether the account had any state.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_POSTINGS
from shared.events.transfers import DeclineReason
from spark.decisions.reference import decided
from spark.lake import no_rows
from spark.night import BREAKS, Night, union
from spark.ownership import OPERATORS, OWNER, client, counts
from spark.places import unstable

CHECK: Final = "accounts"
TERMS_TYPE: Final = (
    "struct<since:bigint,closed:boolean,overdraft:bigint,owner:string,version:bigint,expected:bigint,"
    "instructed:boolean>"
)
"""Terms of an account: since which source in ledger.transfers; the version expected, of a command; whether an
instruction of payments.raw gave them."""
IS_HOUSE: Final = "instr(account, '@') > 0"
HAS_SCOPE: Final = "endswith(client, ':house')"
SHOWN: Final = "if(client = ':', 'no client', trim(trailing ':' from client))"
OWNED_BY: Final = f"coalesce(owner, '{OWNER}')"
AUTHORISED: Final = f"if({IS_HOUSE}, {HAS_SCOPE}, {client('client')} = {OWNED_BY})"
"""Whether a row's client may debit its account."""


def terms_of(**fields: str) -> str:
    """Return a struct of TERMS_TYPE; a field that is not given is null."""
    names = [field.partition(":")[0] for field in TERMS_TYPE.removeprefix("struct<").removesuffix(">").split(",")]
    columns = ", ".join(f"'{name}', {fields.get(name, 'null')}" for name in names)
    return f"named_struct({columns})"


def client_of(night: Night) -> str:
    """Return for whom a record of ledger.postings counts: `client:`, and `:house` after it with that scope.

    It is without a name where it counts for no client. Operators' commands, which have no raw record, are the
    operator's.
    """
    counted = f"origin_topic = 'payments.raw' and {counts(night, 'origin_partition', 'origin_offset')}"
    said = f"if({counted}, submitted_by, '{OPERATORS}')"
    return f"coalesce(concat({client(said)}, if(endswith({said}, ':house'), ':house', ':')), ':')"


_IS_OPEN: Final = "not coalesce(before.closed, false)"
_MAY_OPEN: Final = f"""({HAS_SCOPE} or {client("client")} <> '' and terms.owner = {client("client")}
    and terms.overdraft <=> 0L and (not known or {OWNED_BY} = {client("client")} and {_IS_OPEN}))"""
_VERSION: Final = "coalesce(before.version, 0L)"
REASON_OF_OPENING: Final = f"""case when not {_MAY_OPEN} then '{DeclineReason.NOT_AUTHORISED.value}'
    when terms.expected <> {_VERSION} then '{DeclineReason.STALE_VERSION.value}' else 'none' end"""
"""Why an opening, its terms those that it asks for, has to be declined; `none` if it has to be done."""
_CHANGES: Final = f"""if(terms.closed, {_IS_OPEN}, not ({_IS_OPEN}) or terms.owner <> {OWNED_BY}
    or not (terms.overdraft <=> if(before is null, if({IS_HOUSE}, null, 0L), before.overdraft)))"""
_NEXT: Final = f"if(known, {_VERSION} + if({_CHANGES}, 1, 0), 1)"
FAULT_OF_EVENT: Final = f"""case
    when not terms.closed and {REASON_OF_OPENING} = '{DeclineReason.NOT_AUTHORISED.value}'
        then concat({SHOWN}, ' gave ', account, ' of ', {OWNED_BY}, ' to ', terms.owner,
            ', with overdraft ', coalesce(cast(terms.overdraft as string), 'unlimited'))
    when not terms.closed and {REASON_OF_OPENING} <> 'none'
        then concat('it expects version ', terms.expected, ' of ', account, ', which has ', {_VERSION})
    when terms.version <> {_NEXT}
            and not (terms.version = 0 and {_VERSION} = 0 and {{former}} and not coalesce(terms.instructed, false))
        then concat('it gives ', account, ' version ', terms.version, ', and ', {_NEXT}, ' is the next') end"""
"""What is wrong with an account event; `former` is whether a former ledger may have written it, which knew no openings
by payments.raw."""
FAULT_OF_DEBIT: Final = f"""if({AUTHORISED}, null, concat('submitted by ', {SHOWN}, '; ', account,
    if({IS_HOUSE}, ' needs the scope house', concat(' belongs to ', {OWNED_BY}))))"""

_LISTED_TYPE: Final = "struct<since:bigint,offset:bigint,closed:boolean,overdraft:bigint,owner:string,version:bigint>"
_LISTED: Final = (
    "named_struct('since', source_offset, 'offset', offset, 'closed', closed, 'overdraft', overdraft_minor, 'owner', "
    "owner, 'version', version)"
)


def with_owners(carried: DataFrame) -> DataFrame:
    """Return carried terms with the columns that a former version did not leave."""
    absent = {"owner": f"'{OWNER}'", "version": "0L", "listed": f"cast(null as {_LISTED_TYPE})"}
    return carried.selectExpr(
        "*", *(f"{text} as {name}" for name, text in absent.items() if name not in carried.columns)
    )


def newest(night: Night, terms: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return the newest terms of each account, and its last record of ledger.accounts as `listed`.

    The newest are those that were written last: a repair writes an account event behind later ones. `since` is the
    last source of all events, and in `listed` of all records.

    Args:
        terms: rows of `spark.decisions.cover`, of this run and carried.
        before: what the run before left, of this function.
    """
    flat = terms.selectExpr(
        "account", "partition", "offset", "terms.*", f"cast(null as {_LISTED_TYPE}) as listed"
    ).drop("expected", "instructed")
    parts = [flat]
    blank = [f"cast(null as {flat.schema[name].dataType.simpleString()}) as {name}" for name in flat.columns[2:-1]]
    if LEDGER_ACCOUNTS in night.manifest.topics:
        listed = night.new("account_terms").where("not deleted and source_offset is not null")
        parts.append(listed.selectExpr("account", "partition", *blank, f"{_LISTED} as listed"))
    if before is not None:
        parts.append(with_owners(before).selectExpr("account", "partition", *blank, "listed"))
    return (
        union(parts)
        .groupBy("account")
        .agg(
            *(F.max(name).alias(name) for name in ("partition", "since", "offset")),
            *(_newest(name) for name in ("closed", "overdraft", "version")),
            _newest("owner", "owner"),
            F.max_by("listed", F.expr("listed.offset")).alias("listed"),
            F.max(F.expr("listed.since")).alias("listed_since"),
        )
        .withColumn("listed", F.col("listed").withField("since", F.col("listed_since")))
        .drop("listed_since")
    )


def _newest(name: str, where: str = "offset") -> Column:
    """Return a column of the newest row in which another one is not null."""
    return F.max_by(name, F.expr(f"if({where} is null, null, offset)")).alias(name)


def check_listed(night: Night, rows: DataFrame) -> DataFrame:
    """Return BREAKS of accounts whose last record of ledger.accounts has other terms than their last event gave.

    Nothing is judged where that record, or the event, may be above the cut, nor in a cut of a former version, which
    does not have the topic. Rows are of `newest`.
    """
    if LEDGER_ACCOUNTS not in night.manifest.topics:
        return no_rows(night.spark, BREAKS)
    hidden = {topic: unstable(night, topic) for topic in (LEDGER_ACCOUNTS, LEDGER_POSTINGS)}
    of_terms = decided(
        _visible(rows, hidden[LEDGER_ACCOUNTS]).where("version > 0 and since > coalesce(listed.since, -1L)"),
        CHECK,
        f"concat('{LEDGER_ACCOUNTS} has no record of these terms of ', account)",
        at=(f"'{LEDGER_POSTINGS}'", "partition", "offset", "null"),
        rechecked="true",
    )
    same = f"""listed.since = since and listed.closed = closed and listed.version = version
        and listed.owner = coalesce(owner, '{OWNER}') and (closed or listed.overdraft <=> overdraft)"""
    of_listed = decided(
        _visible(rows, hidden[LEDGER_POSTINGS]).where(f"listed.since >= coalesce(since, -1L) and not ({same})"),
        CHECK,
        "concat('owner ', listed.owner, ', version ', listed.version, ': no account event gave ', account, ' these')",
        at=(f"'{LEDGER_ACCOUNTS}'", "partition", "listed.offset", "null"),
        rechecked="true",
    )
    return union([of_terms, of_listed])


def _visible(rows: DataFrame, numbers: tuple[int, ...]) -> DataFrame:
    return rows.where(~F.col("partition").isin(*numbers)) if numbers else rows
