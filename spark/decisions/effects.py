"""The effects that each posting and decline asks for, by the subscriptions that it names (I11).

A request that was lost together with its result leaves no trace but this: its event names a subscription that asks for
it. An event and its requests are siblings in one transaction, and a cut may show one of them only. Such an event is
carried. An event that is a break is carried too, because a repair may write its requests. It stays a break when its
requests expire, and when the subscriptions that it names are compacted away.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_POSTINGS, LEDGER_TRANSFERS, REFERENCE_SUBSCRIPTIONS
from shared.events.effects import EVERY_ACCOUNT, EffectKind
from spark.decisions.reference import compacted_before_ms, decided, with_choices
from spark.history import bounds_of
from spark.night import JUDGED, Night, by_partition, is_late, union, with_carried
from spark.places import Log, offset_of

CHECK: Final = "subscribed"
CARRIED: Final = "decisions_on_effects"
_EVENT: Final = {
    "at": "bigint",  # place of the source in ledger.transfers
    "partition": "int",
    "offset": "bigint",
    "used_ms": "bigint",
    "payment_id": "string",
    "account": "string",  # that acted
    "situation": "string",
    "said": "boolean",
    "own_named": "string",
    "common_named": "string",
}
_REQUESTS: Final = "array<struct<kind:string,destination:string,ordered:boolean>>"
_COLUMNS: Final = (*_EVENT, "asked", "text", JUDGED)
_KINDS: Final = f"""(case situation
    when 'debit' then array('{EffectKind.RECEIPT.value}', '{EffectKind.EVENT.value}')
    when 'credit' then array('{EffectKind.NOTICE.value}', '{EffectKind.EVENT.value}')
    when 'decline' then array('{EffectKind.DECLINE_NOTICE.value}', '{EffectKind.EVENT.value}')
    else array('{EffectKind.EVENT.value}') end)"""
# Of two subscriptions to one kind at one destination, the first counts
_DUE: Final = f"""get(transform(array(filter(
        concat(coalesce(own.subscriptions, array()), coalesce(common.subscriptions, array())),
        one -> array_contains({_KINDS}, one.kind))),
    every -> array_sort(transform(
        filter(every, (one, i) -> not exists(slice(every, 1, i),
            earlier -> earlier.kind = one.kind and earlier.destination = one.destination)),
        one -> named_struct('kind', one.kind, 'destination', one.destination,
            'ordered', coalesce(one.ordered, false))))), 0)"""
_IS_RIGHT: Final = f"exists(own_choices, own -> exists(common_choices, common -> {_DUE} = asked))"
_TEXT: Final = f"""coalesce(if({JUDGED} and not (own_complete and common_complete), text_before, null),
    if(faults <> '', faults, concat('it asked for ', size(asked),
    ' effects, and not for those that the subscriptions in force ask for')))"""


def check(night: Night, known: DataFrame) -> DataFrame:
    """Return events whose requests are not right, to be kept, with `state`: `wrong`, `open` or `hidden`."""
    source = Log(night.manifest, LEDGER_TRANSFERS).source()
    requests = _requests(night, source)
    events = _events(night, source)
    before = night.carried(CARRIED)
    if before is not None:
        # A former version carried no text
        known_text = "text" if "text" in before.columns else "cast(null as string) as text"
        left = before.selectExpr(*(known_text if name == "text" else name for name in _COLUMNS))
        events = events.unionByName(left.withColumnsRenamed({"asked": "asked_before", "text": "text_before"}))
    asked = f"array_sort(concat(asked_before, coalesce(asked_now, cast(array() as {_REQUESTS}))))"
    rows = (
        events.join(requests, on=events["at"] == requests["asked_at"], how="left")
        .selectExpr(*_EVENT, f"{asked} as asked", "text_before", JUDGED)
        .selectExpr("*", "account as own_key", f"'{EVERY_ACCOUNT}' as common_key")
    )
    compacted_ms = compacted_before_ms(night)
    rows = with_choices(rows, known, REFERENCE_SUBSCRIPTIONS, "own", compacted_ms, broadcast=False)
    rows = with_choices(rows, known, REFERENCE_SUBSCRIPTIONS, "common", compacted_ms, broadcast=True)
    judged = rows.selectExpr("*", "concat_ws('; ', own_fault, common_fault) as faults").where(
        f"(faults <> '' or not coalesce({_IS_RIGHT}, false)) and ({JUDGED} or not {_expired(night, requests)})"
    )
    state = f"""case when faults <> '' then 'wrong' when {_hidden(night, requests)} then 'hidden'
        when not (own_complete and common_complete) and not {JUDGED} then 'open' else 'wrong' end"""
    return judged.selectExpr(*_EVENT, "asked", JUDGED, f"{_TEXT} as text", f"{state} as state")


def findings(rows: DataFrame) -> DataFrame:
    """Return BREAKS of what `check` found."""
    at = (f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id")
    return decided(rows, CHECK, "text", open_="state = 'open'", hidden="state = 'hidden'", at=at, rechecked="true")


def to_carry(rows: DataFrame) -> DataFrame:
    """Return the events that the next run judges again."""
    return rows.where(F.col("state") != "open").withColumn(JUDGED, F.col("state") == "wrong").select(*_COLUMNS)


def _events(night: Night, source: str) -> DataFrame:
    """Return postings and declines of client accounts."""
    postings = night.new("postings").selectExpr(
        "*",
        "if(leg = 'debit', debtor, creditor) as account",
        "entries.account as moved",
    )
    parts = [
        postings.selectExpr("*", "if(array_contains(moved, account), leg, '') as situation"),
        night.new("declines").selectExpr("*", "debtor as account", "'decline' as situation"),
    ]
    own = {
        "at": source,
        "used_ms": "unix_millis(timestamp)",
        "said": "notified_by is not null",
        "own_named": "get(notified_by, 0)",
        "common_named": "get(notified_by, 1)",
    }
    columns = [f"cast({own.get(name, name)} as {kind}) as {name}" for name, kind in _EVENT.items()]
    blank = f"cast(array() as {_REQUESTS}) as asked_before", "cast(null as string) as text_before"
    rows = union([part.selectExpr(*columns, *blank, f"false as {JUDGED}") for part in parts])
    return rows.where("instr(account, '@') = 0 and at is not null")


def _requests(night: Night, source: str) -> DataFrame:
    """Return what was asked for by source, of this run and of those whose event was not visible before."""
    frames = [frame for frame, _ in with_carried(night, "effect_requests", "effects_children_effect_requests")]
    one = "named_struct('kind', kind, 'destination', destination, 'ordered', coalesce(ordered, false)) as one"
    rows = union([frame.selectExpr(f"{source} as asked_at", one) for frame in frames]).where("asked_at is not null")
    return rows.groupBy("asked_at").agg(F.collect_list("one").alias("asked_now"))


def _hidden(night: Night, requests: DataFrame) -> str:
    """Whether an event's requests may be above the cut: they are written in the order of their sources."""
    unstable = Log(night.manifest, EFFECTS_REQUESTS).unstable
    if not unstable:
        return "false"
    seen = bounds_of(requests.selectExpr("asked_at as at"))
    last = {number: seen[number][1] - 1 if number in seen else -1 for number in unstable}
    above = f"{offset_of('at')} > {by_partition('partition', last)}"
    return (
        f"(coalesce({above}, false) and not {JUDGED} and not {is_late(night, LEDGER_POSTINGS, 'partition', 'offset')})"
    )


def _expired(night: Night, requests: DataFrame) -> str:
    """Whether an event's requests may have expired before they could be landed.

    A run from the beginning starts where the log began. Elsewhere, requests that were landed are no longer needed.
    """
    ranges = night.manifest.topics[EFFECTS_REQUESTS]
    first_run = not night.manifest.previous
    begun = [
        number
        for number, offsets in ranges.items()
        if offsets.beginning > offsets.start or (first_run and 0 < offsets.beginning == offsets.start)
    ]
    if not begun:
        return "false"
    seen = bounds_of(requests.selectExpr("asked_at as at"))
    ends = {number: seen[number][0] if number in seen else 2**53 for number in begun}
    return f"coalesce({offset_of('at')} <= {by_partition('partition', ends)}, false)"
