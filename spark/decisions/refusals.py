"""Refusals: records that ingest refused or accepted (I6), and reversals that the ledger declined (I3).

A dead letter is a break where its bytes certainly do not break the rule that its reason names, or where the record is
certainly valid. What only ingest's own parser decides is not judged: texts beyond ASCII, escaped surrogates, deep
nesting, duplicate keys, unusual timestamps. Nor is `too_large`, which follows from the limits of the topics at that
time.

Patterns end with `\\z`: Java's `$` also matches before a line terminator at the end.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER
from shared.events.dead_letters import Reason
from shared.events.payments import MAX_AMOUNT_MINOR, MAX_PAYMENT_ID_CHARS, MAX_REFERENCE_CHARS
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import DeclineReason
from spark.decisions.reference import decided, only
from spark.history import ACCEPTED, identities_begin, window_begins
from spark.lake import Bounds
from spark.night import NO_AMOUNT, Amount, Night, union, with_carried
from spark.places import PLACE, Log, home, partition_of, place
from spark.schemas import TABLES

CHECK: Final = "refusals"

_HOUSE: Final = "cash|clearing|interest|fees|insurance|loans|other"
_CLIENT: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_END: Final = r"\\z"
_CODES: Final = ", ".join(f"'{code}'" for code in sorted(MINOR_DIGITS))
_KNOWN: Final = {
    "old": "schema_version payment_id account_from account_to amount_minor currency occurred_at memo",
    "payment": "schema_version type payment_id debtor creditor amount_minor currency credit_currency value_date "
    "reference",
    "reversal": "schema_version type payment_id debtor reverses value_date reference",
    "account_opening": "schema_version type payment_id debtor overdraft_minor expected_version owner",
}
_REQUIRED: Final = {
    "old": "payment_id account_from account_to amount_minor currency",
    "payment": "payment_id debtor creditor amount_minor currency",
    "reversal": "payment_id debtor reverses",
    "account_opening": "payment_id debtor",
}
_FIELDS: Final = sorted({name for names in _KNOWN.values() for name in names.split()})


def _is_account(account: str, partitions: int) -> str:
    house = f"rlike({account}, '^({_HOUSE})@(0|[1-9][0-9]{{0,2}}){_END}')"
    number = f"try_cast(substring_index({account}, '@', -1) as int) < {partitions}"
    return f"(rlike({account}, '^{_CLIENT}{_END}') or {house} and {number})"


def _texts(names: dict[str, str]) -> str:
    cases = " ".join(
        f"when '{shape}' then array({', '.join(repr(name) for name in text.split())})" for shape, text in names.items()
    )
    return f"(case shape {cases} end)"


def _string(name: str) -> str:
    """Return a field that is a text; null for another type, whose value would be read as one."""
    return f"if({name}_type = 'STRING', {name}, null)"


def _is_text(name: str, rule: str) -> str:
    """Whether a field is absent, null, or a text that follows a rule."""
    return f"({name}_type is null or {name}_type = 'VOID' or {name}_type = 'STRING' and {rule})"


def _is_count(name: str) -> str:
    """Whether a field is absent, null, or an integer within the bounds of an amount."""
    number = f"try_cast({name} as bigint) between 0 and {MAX_AMOUNT_MINOR}"
    return f"({name}_type is null or {name}_type = 'VOID' or {name}_type = 'BIGINT' and {number})"


_DATE: Final = "^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ID: Final = f"^[\\\\x20-\\\\x7e]{{1,{MAX_PAYMENT_ID_CHARS}}}{_END}"
_BRACKETS_MAX: Final = 64
_IS_READ: Final = rf"""(is_valid_utf8(text) and not rlike(text, '(?i)\\\\ud[89a-f]')
    and length(text) - length(translate(text, '[{{', '')) <= {_BRACKETS_MAX})"""
"""Whether a text is judged. Java accepts escapes of single surrogates, and nested values can exhaust its stack."""
_IS_ONE_VALUE: Final = """(json_array_length(concat('[', text, ']')) = 1
    and json_object_keys(concat('{"value":', text, '}')) = array('value'))"""
"""Whether nothing follows the first JSON value, which is all that Spark reads. Each frame alone can be closed early."""


def _parsed(letters: DataFrame, partitions: int) -> DataFrame:
    """Add what can be read of each dead letter; null where it cannot."""
    text = letters.selectExpr("*", "cast(value as string) as text")
    judged = text.withColumn("text", F.expr(f"if({_IS_READ}, text, null)"))
    one = judged.selectExpr("*", f"if({_IS_ONE_VALUE}, text, null) as one")
    json = one.selectExpr("*", "try_parse_json(one) as json", "json_object_keys(one) as names").drop("one")
    # One expression for all fields: each takes longer to compile than all dead letters of a night take to be read
    typed = "named_struct('text', try_cast(one as string), 'type', schema_of_variant(one))"
    read = f"transform_values(try_variant_get(json, '$', 'map<string, variant>'), (name, one) -> {typed})"
    fields = json.selectExpr("*", f"{read} as fields").selectExpr(
        "*",
        *(f"fields['{name}'].text as {name}" for name in _FIELDS),
        *(f"fields['{name}'].type as {name}_type" for name in _FIELDS),
    )
    shape = """case when schema_version_type <> 'BIGINT' then null when schema_version = '1' then 'old'
        when schema_version = '2' and (type_type is null and not array_contains(names, 'type') or type = 'payment')
            then 'payment'
        when schema_version = '2' and type in ('reversal', 'account_opening') then type end"""
    shaped = fields.selectExpr("*", f"{shape} as shape")
    parties = shaped.selectExpr(
        "*",
        f"if(shape = 'old', {_string('account_from')}, {_string('debtor')}) as payer",
        f"if(shape = 'old', {_string('account_to')}, {_string('creditor')}) as payee",
        f"array_except({_texts(_REQUIRED)}, names) as missing",
        f"array_except(names, {_texts(_KNOWN)}) as unknown",
        "amount_minor_type = 'BIGINT' as amount_is_integer",
    )
    payer, payee = (_is_account(name, partitions) for name in ("payer", "payee"))
    credit_currency = _is_text("credit_currency", f"credit_currency in ({_CODES})")
    return parties.selectExpr(
        "*",
        f"""{payer} and case shape when 'reversal' then true when 'account_opening' then instr(payer, '@') = 0
            else {payee} end as accounts_are_valid""",
        f"currency in ({_CODES}) and {credit_currency} as codes_are_known",
        "amount_is_integer and try_cast(amount_minor as bigint) > 0 as amount_is_positive",
        f"{home('payer', partitions)} as home",
    )


_VALID: Final = f"""(size(missing) = 0 and size(unknown) = 0 and accounts_are_valid
    and payment_id_type = 'STRING' and rlike(payment_id, '{_ID}')
    and (shape = 'reversal' and reverses_type = 'STRING' and rlike(reverses, '{_ID}')
        or shape = 'account_opening' and {_is_count("overdraft_minor")} and {_is_count("expected_version")}
            and {_is_text("owner", f"rlike(owner, '^{_CLIENT}{_END}')")}
        or shape in ('old', 'payment') and payer <> payee and codes_are_known and amount_is_positive
            and try_cast(amount_minor as bigint) <= {MAX_AMOUNT_MINOR})
    and {_is_text("value_date", f"rlike(value_date, '{_DATE}{_END}') and try_cast(value_date as date) is not null")}
    and {
    _is_text(
        "occurred_at",
        f"rlike(occurred_at, '{_DATE}T[0-9]{{2}}:[0-5][0-9]:[0-5][0-9]Z{_END}')"
        " and try_cast(occurred_at as timestamp) is not null",
    )
}
    and (reference_type is null and not array_contains(names, 'reference')
        or reference_type = 'STRING' and length(reference) <= {MAX_REFERENCE_CHARS})
    and (memo_type is null and not array_contains(names, 'memo')
        or memo_type = 'STRING' and length(memo) <= {MAX_REFERENCE_CHARS}))"""
_RULE_HOLDS: Final = f"""(case reason
    when '{Reason.NOT_UTF8.value}' then text is not null
    when '{Reason.NOT_JSON.value}' then json is not null
    when '{Reason.NOT_AN_OBJECT.value}' then names is not null
    when '{Reason.SCHEMA_VERSION_MISSING.value}' then array_contains(names, 'schema_version')
    when '{Reason.SCHEMA_VERSION_UNKNOWN.value}' then schema_version_type = 'BIGINT' and schema_version in ('1', '2')
    when '{Reason.TYPE_UNKNOWN.value}' then shape is not null
    when '{Reason.FIELD_MISSING.value}' then size(missing) = 0
    when '{Reason.FIELD_UNKNOWN.value}' then size(unknown) = 0
    when '{Reason.AMOUNT_NOT_INTEGER.value}' then amount_is_integer
    when '{Reason.AMOUNT_NOT_POSITIVE.value}' then amount_is_positive
    when '{Reason.CURRENCY_UNKNOWN.value}' then codes_are_known
    when '{Reason.ACCOUNT_INVALID.value}' then accounts_are_valid
    when '{Reason.SAME_ACCOUNT.value}' then payer <> payee or shape in ('reversal', 'account_opening') end)"""
_FAULT: Final = f"""case
    when reason = '{Reason.TOO_LARGE.value}' then null
    when is_valid and home <> origin_partition and not (reason <=> '{Reason.WRONG_PARTITION.value}')
        then concat('refused for ', coalesce(reason, 'no reason'), ', not for {Reason.WRONG_PARTITION.value}')
    when is_valid and home = origin_partition and not (reason <=> '{Reason.IDENTITY_CONFLICT.value}')
        then concat('refused for ', coalesce(reason, 'no reason'), ', and it is valid')
    when rule_holds then concat('refused for ', reason, ', and that rule is kept') end"""


def check(night: Night) -> list[DataFrame]:
    """Return BREAKS of the dead letters, accepted records and declined reversals of this run."""
    partitions = len(night.manifest.topics[PAYMENTS_ACCEPTED])
    letters = night.new("dead_letters").where("origin_partition is not null")
    judged = _parsed(letters, partitions).selectExpr(
        "*", f"coalesce({_VALID}, false) as is_valid", f"coalesce({_RULE_HOLDS}, false) as rule_holds"
    )
    refused = only(judged.selectExpr("*", f"{_FAULT} as found"), "found is not null", fault="found")
    at = (f"'{PAYMENTS_DEAD_LETTER}'", "partition", "offset", "if(shape is null, null, payment_id)")
    rare = _rare(night)
    return [
        decided(refused, CHECK, "fault", at=at),
        *(_accepted(night, table, partitions) for table in ACCEPTED),
        *(part(night) for name, part in _RARE.items() if name in rare),
    ]


def _accepted(night: Night, table: str, partitions: int) -> DataFrame:
    """Return accepted records that break a rule."""
    of_payment = f"""{_is_account("creditor", partitions)} and debtor <> creditor and amount_minor > 0
        and currency in ({_CODES}) and (credit_currency is null or credit_currency in ({_CODES}))"""
    of_table = {"payments": of_payment, "openings": "instr(debtor, '@') = 0"}
    rule = f"{_is_account('debtor', partitions)} and ({of_table.get(table, 'true')})"
    at = (f"'{PAYMENTS_ACCEPTED}'", "partition", "offset", "payment_id")
    amount = Amount("currency", "amount_minor") if table == "payments" else NO_AMOUNT
    return decided(
        night.new(table).where(f"not ({rule})"), CHECK, "'accepted, and it breaks a rule'", at=at, amount=amount
    )


def conflicts(night: Night) -> DataFrame:
    """Return BREAKS of records refused as a conflict without an earlier payment of their identity that differs.

    ingest compares with the identities that it remembers, so no earlier ones are read. The earlier payment may be above
    the cut of payments.accepted: then its raw record shows it. If it is missing, that is the break. A repair may find a
    later payment accepted, as in `checks.repeats`.
    """
    letters = night.new("dead_letters").selectExpr("partition", "offset", "reason", "repair", f"{_ORIGIN} as raw_at")
    own = letters.where(f"reason = '{Reason.IDENTITY_CONFLICT.value}'")
    raw = union([frame for frame, _ in with_carried(night, "payments_raw", "ingest_parents_payments_raw")])
    contents = _contents(raw.where("payment_id is not null"), "payments_raw", PLACE)
    refused_contents = contents.toDF("debtor", "payment_id", "content", "content_at")
    refused = own.join(refused_contents, on=F.expr("raw_at = content_at"), how="inner")
    ranges = night.manifest.topics[PAYMENTS_ACCEPTED]
    remembered = {number: (of, ranges[number].start) for number, of in identities_begin(night, "offset").items()}
    frames = [(table, frame) for table in ACCEPTED for frame in (night.new(table), night.history(table, remembered))]
    not_refused = contents.join(letters, on=contents["other_at"] == letters["raw_at"], how="left_anti")
    before = union([*(_contents(frame, table, _ORIGIN) for table, frame in frames), not_refused])
    same = (refused["debtor"] == before["of_debtor"]) & (refused["payment_id"] == before["of_id"])
    known = "(other_at < raw_at or other_at > raw_at and repair is not null)"
    earlier = f"{partition_of('other_at')} = {partition_of('raw_at')} and {known} and other <> content"
    wrong = (
        refused.join(before, on=same, how="left")
        .groupBy("partition", "offset", "payment_id")
        .agg(F.expr(f"bool_or(coalesce({earlier}, false)) as explained"))
        .where("not explained")
    )
    at = (f"'{PAYMENTS_DEAD_LETTER}'", "partition", "offset", "payment_id")
    text = "'refused for identity_conflict, and no payment of its identity with other content was accepted before'"
    return decided(wrong, CHECK, text, at=at)


_ORIGIN: Final = place("origin_partition", "origin_offset")
_CONTENT: Final = (
    *("creditor", "amount_minor", "currency", "credit_currency", "value_date", "reference", "reverses"),
    *("overdraft_minor", "expected_version", "owner"),
)


def _contents(frame: DataFrame, table: str, at: str) -> DataFrame:
    """Return identity, content and place in payments.raw; contents that may be the same to ingest can seem to differ.

    Args:
        at: the place, an expression.
    """
    known = {field.name for field in TABLES[table].columns}
    parts = [f"coalesce(cast({name} as string), '')" if name in known else "''" for name in _CONTENT]
    content = f"concat_ws(chr(0), {', '.join(parts)})"
    return frame.selectExpr("debtor as of_debtor", "payment_id as of_id", f"{content} as other", f"{at} as other_at")


REVERSALS: Final = "reversals declined"

_REVERSAL_FAULT: Final = f"""case
    when reason = '{DeclineReason.ORIGINAL_NOT_FOUND.value}' and booked >= offset - {{window}}
        then concat('declined for ', reason, ', and ', reverses, ' was booked')
    when reason = '{DeclineReason.ALREADY_REVERSED.value}' and booked is null
        then concat('declined for ', reason, ', and ', reverses, ' was not booked')
    when reason = '{DeclineReason.ALREADY_REVERSED.value}' and reversed is null
        then concat('declined for ', reason, ', and ', reverses, ' was not reversed') end"""


def check_reversals(night: Night) -> DataFrame:
    """Return BREAKS of this run's declines of reversals: the payment was not booked, or had been reversed.

    The ledger remembers a number of payments of each partition, its setting `reversal_window`. A payment that was
    booked more than `reversal_window` offsets before may have been forgotten: it may be found or not. After
    `reversal_window` further bookings it is forgotten, so earlier records are not read. History is read only where
    there are some declines.
    """
    source = Log(night.manifest, LEDGER_TRANSFERS).source()
    own = night.new("declines").where("reversal")
    own = own.selectExpr("partition", "offset", "payment_id", "debtor", "reason", f"{source} as ordered_at")
    ordered = union(
        [frame for frame, _ in with_carried(night, "transfer_reversals", "ledger_parents_transfer_reversals")]
    ).selectExpr(f"{PLACE} as at", "reverses")
    declined = own.join(ordered, on=own["ordered_at"] == ordered["at"], how="inner")
    window = night.manifest.settings.reversal_window
    debits = union([night.new("postings"), _remembered(night, window)]).where("leg = 'debit'")
    debits = debits.selectExpr(
        "debtor as of_debtor",
        "if(reversal, reverses, payment_id) as of_payment",
        "if(reversal, null, offset) as original",
        "if(reversal, offset, null) as reversing",
    )
    same = (debits["of_debtor"] == declined["debtor"]) & (debits["of_payment"] == declined["reverses"])
    wanted = debits.join(F.broadcast(declined.select("debtor", "reverses")), on=same, how="left_semi")
    judged = (
        declined.join(wanted, on=same, how="left")
        .groupBy("partition", "offset", "payment_id", "reason", "reverses")
        .agg(
            F.max(F.when(F.col("original") < F.col("offset"), F.col("original"))).alias("booked"),
            F.max(F.when(F.col("reversing") < F.col("offset"), F.col("reversing"))).alias("reversed"),
        )
        .selectExpr("*", f"{_REVERSAL_FAULT.format(window=window)} as fault")
    )
    at = (f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id")
    return decided(judged.where("fault is not null"), REVERSALS, "fault", at=at)


def _remembered(night: Night, window: int) -> DataFrame:
    """Return postings of earlier cuts: those of payments that the ledger may remember, and all later ones."""

    def booked(bounds: Bounds) -> DataFrame:
        return night.history("postings", bounds).where("leg = 'debit' and not reversal").select("partition", "offset")

    begins = window_begins(night, LEDGER_POSTINGS, window, booked)
    ranges = night.manifest.topics[LEDGER_POSTINGS]
    return night.history("postings", {number: (begin, ranges[number].start) for number, begin in begins.items()})


_RARE: Final = {"conflicts": conflicts, "reversals": check_reversals}
"""Checks that look up earlier records, by the records that need them."""


def _rare(night: Night) -> set[str]:
    """Return which rare records this run has."""
    letters = night.new("dead_letters").where(F.col("reason") == Reason.IDENTITY_CONFLICT.value)
    declines = night.new("declines").where("reversal")
    rows = union([letters.select(F.lit("conflicts").alias("name")), declines.select(F.lit("reversals").alias("name"))])
    return {row["name"] for row in rows.distinct().collect()}
