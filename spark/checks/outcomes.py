"""The outcome of each requested effect: a result, or it waits, or it was not consumed yet (I11).

Invariant: figures add up over runs. A later decision on an effect of an earlier run counts by the difference, so a
figure may decrease. Open effects are carried: the request, and all other rows of it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.effects import ResolutionAction
from spark.checks import effect_rows
from spark.checks.effect_rows import (
    ALIVE,
    AT,
    CHECK,
    CODES,
    CONTRADICTED,
    FAILED,
    STATE_CODE,
    TABLES,
    TOPIC_OF_AT,
    UNKNOWN,
    effects,
    overdue,
    waits_too_long,
    wrong_result,
)
from spark.history import bounds_of, since
from spark.manifest import Manifest
from spark.night import (
    JUDGED,
    Checked,
    Kind,
    Night,
    all_breaks,
    breaks,
    by_partition,
    check_early,
    finding,
    is_late,
    uncommitted,
    union,
    with_carried,
)
from spark.places import PLACE, Log, offset_of, partition_of
from spark.schemas import TABLES as SCHEMAS
from spark.settling import last_seen, marks_to_carry

_MARKS = "effects_results_marks"

DECIDED, INVALID, NO_LETTER = "decided", "invalid", "no letter"
WAITING, PENDING, MISSING = "waiting", "pending", "missing"
UNREQUESTED: Final = "unrequested"

_AGAIN, _EARLY, _STILL = "again", "early", "still_waiting"
"""Aspects of an effect in any state: requested again, ahead of the offset, or decided and still waiting."""
_IS_STILL_WAITING: Final = f"requests > 0 and renewed and word is not null and {ALIVE}"
_OPEN: Final = "is_open"
_WAITING_TABLE: Final = "effects_waiting"

_UNDECIDED: Final = (WAITING, PENDING, MISSING, NO_LETTER)
"""States of effects that may be open; if they are not, it is a break."""
_THERE: Final = {
    "effect_requests": "request",
    "effect_results": "result",
    _WAITING_TABLE: "waiting",
    "effect_dead_letters": "letter",
}
"""By table, the column that is null for an effect without rows of it."""


class _Judged(NamedTuple):
    """What is known of effects that are not simply decided, and figures over all.

    Attributes:
        unmatched: a row for each, with its state, its aspects and `_OPEN`.
        counts: of them, by state and by aspect; `open` of those that are open, by state.
        tables: those with rows of undecided effects.
        marks: how far results were seen.
    """

    unmatched: DataFrame
    counts: Counter[str]
    open: Counter[str]
    tables: list[str]
    metrics: dict[str, int]
    marks: dict[tuple[int, int], int]


def check(night: Night) -> Checked:
    """Compare each request with its outcome, and each outcome with requests."""
    frames = {table: with_carried(night, table, _carried(table)) for table in TABLES}
    unmatched, counts, under_way, tables, metrics, marks = _judged(night, effects(night.manifest, frames))
    kept_marks = marks_to_carry(night, _MARKS, marks, [Log(night.manifest, "effects.results")])
    others = (
        effect_rows.check_unrequested(night, unmatched.where(F.col("state") == UNREQUESTED))
        if counts[UNREQUESTED]
        else None
    )
    metrics["expired"] = 0
    for name, count in (others.figures if others is not None else {}).items():
        metrics[name] += count
    missing = unmatched.where(f"state in ('{WAITING}', '{PENDING}', '{NO_LETTER}') and not {_OPEN}")
    if counts[MISSING]:
        # One that was requested again may have had its result in an earlier cut
        not_hidden = unmatched.where(f"state = '{MISSING}' and not {_OPEN}")
        bounds = since(night, "effect_results", "effects.requests", bounds_of(not_hidden.selectExpr("request as at")))
        before = night.history("effect_results", bounds).select("effect_id")
        not_hidden = not_hidden.join(before, on="effect_id", how="left_anti")
        missing = missing.unionByName(not_hidden).persist()
    ids = [unmatched.where(_OPEN).select("effect_id", F.lit(False).alias(JUDGED))] if under_way else []
    if tables:
        ids.append(missing.select("effect_id", F.lit(True).alias(JUDGED)))
    if others is not None and others.in_flight:
        ids.append(others.open)
        tables = list(TABLES)
    resent = _sent_again(night, unmatched) if counts[_STILL] else None
    resent_count = 0 if resent is None else resent.count()
    metrics["effects_waiting"] += resent_count
    torn = _torn(night, unmatched, counts, resent)
    carried = _carry({table: frames[table] for table in tables}, ids)
    waits = [resent] if resent is not None and resent_count else []
    if others is not None and others.waits is not None:
        waits.append(others.waits)
    if waits:
        # Their results are counted: what follows counts by the difference, as of effects of an earlier run
        carried |= _carry({_WAITING_TABLE: frames[_WAITING_TABLE]}, [*ids, *waits])
    return Checked(
        all_breaks(
            [
                *_breaks(night, unmatched, counts, missing),
                *(one.breaks for one in torn),
                *(others.breaks if others else []),
            ],
        ),
        metrics,
        {
            "outbox": under_way.total() - under_way[WAITING],
            "effects_waiting": under_way[WAITING] + resent_count + (others.waiting if others is not None else 0),
            "effects_ahead": others.in_flight if others is not None else 0,
        },
        {
            **carried,
            **kept_marks,
            **{name: frame for one in torn for name, frame in one.carry.items()},
        },
    )


def _carried(table: str) -> str:
    return f"effects_open_{table}"


def _state(manifest: Manifest) -> str:
    committed = by_partition(partition_of("request"), manifest.committed("outbox"))
    return f"""case
        when requests = 0 then if(word is null and letter is null and not {ALIVE}, null, '{UNREQUESTED}')
        when word is not null and ({STATE_CODE} = {UNKNOWN} or {CONTRADICTED}) then '{INVALID}'
        when word is not null then if({STATE_CODE} = {FAILED} and letter is null, '{NO_LETTER}', '{DECIDED}')
        when {ALIVE} then '{WAITING}'
        when {offset_of("request")} >= coalesce({committed}, 0) then '{PENDING}'
        else '{MISSING}' end"""


def _judged(night: Night, rows: DataFrame) -> _Judged:
    """Judge the rows of `effects`."""
    metrics = {
        f"effects_{state}": f"count_if(state = '{DECIDED}' and {STATE_CODE} = {code})" for state, code in CODES.items()
    }
    failed = f"state = '{DECIDED}' and {STATE_CODE} = {FAILED} or state = '{NO_LETTER}' and not {_letter_hidden(night)}"
    metrics["effects_failed"] = f"count_if(({failed}) and not counted)"
    metrics["effects_waiting"] = f"count_if(state = '{WAITING}') - count_if(waited)"
    metrics["effects_resent"] = f"sum(if(state = '{DECIDED}', resends, 0))"
    numbers = Log(night.manifest, "effects.results").partitions
    highest = {f"mark_{number}": f"max(if({partition_of('source')} = {number}, source, null))" for number in numbers}
    seen = Observation()
    texts = {**metrics, **highest}
    passed = rows.selectExpr("*", f"{_state(night.manifest)} as state").observe(
        seen, *(F.expr(text).cast("bigint").alias(name) for name, text in texts.items())
    )
    aspects = {_AGAIN: "requests > 1", _EARLY: _is_early(night.manifest), _STILL: _IS_STILL_WAITING}
    columns = ("*", *(f"coalesce({text}, false) as {name}" for name, text in aspects.items()))
    left = Observation()
    not_simple = passed.selectExpr(*columns).where(f"state <> '{DECIDED}' or {' or '.join(aspects)}")
    unmatched = night.keep(not_simple.observe(left, F.count(F.lit(1)).alias("rows")))
    values = seen.get
    marks = {(0, number): at for number in numbers if (at := values[f"mark_{number}"]) is not None}
    unmatched = unmatched.withColumn(_OPEN, F.expr(f"coalesce({_is_open(night, marks)}, false)"))
    by_state = unmatched.groupBy("state", _OPEN, *aspects).agg(
        F.count(F.lit(1)).alias("count"), *(F.count(name).alias(table) for table, name in _THERE.items())
    )
    counts, open_ = Counter[str](), Counter[str]()
    states = by_state.collect() if left.get["rows"] else []
    for row in states:
        for name in (row["state"], *(aspect for aspect in aspects if row[aspect])):
            counts[name] += row["count"]
        if row[_OPEN]:
            open_[row["state"]] += row["count"]
    tables = [table for table in _THERE if any(row[table] for row in states if row["state"] in _UNDECIDED)]
    return _Judged(unmatched, counts, open_, tables, {name: values[name] or 0 for name in metrics}, marks)


def _is_open(night: Night, marks: Mapping[tuple[int, int], int]) -> str:
    """Whether what an undecided effect lacks may come yet."""
    return f"""(state = '{WAITING}' and not {overdue(night)} or state = '{PENDING}' and not {_late(night)}
        or state = '{MISSING}' and {_hidden(night, marks)} or state = '{NO_LETTER}' and {_letter_hidden(night)})"""


def _hidden(night: Night, marks: Mapping[tuple[int, int], int]) -> str:
    """Whether the result of an effect without one may be above the cut.

    Results are in the order of their requests, unless these waited; a waiting effect names no source.
    """
    unstable = Log(night.manifest, "effects.results").unstable
    last = last_seen(night, _MARKS, marks) if unstable else {}
    bounds = {number: last.get((0, number), -1) for number in unstable}
    bounds |= dict.fromkeys(Log(night.manifest, "effects.waiting").unstable, -1)
    above = f"coalesce(request > {by_partition(partition_of('request'), bounds)}, false)"
    return f"({above} and not {JUDGED} and not {_late(night)})" if bounds else "false"


def _letter_hidden(night: Night) -> str:
    """Whether the dead letter of a failed effect may be above the cut."""
    letters = dict.fromkeys(Log(night.manifest, "effects.dead-letter").unstable, -1)
    above = f"{by_partition(partition_of('request'), letters)} is not null"
    return f"({above} and not {JUDGED} and not {_late(night)})" if letters else "false"


def _late(night: Night) -> str:
    """Whether a request was in flight for too many cuts."""
    return is_late(night, "effects.requests", partition_of("request"), offset_of("request"))


def _carry(frames: Mapping[str, list[tuple[DataFrame, bool]]], ids: list[DataFrame]) -> dict[str, DataFrame]:
    """Return all rows of open effects; `ids` are effect_id and JUDGED. A table without such rows is not written."""
    return {
        _carried(table): union([frame for frame, _ in some])
        .drop(JUDGED)
        .join(union(ids), on="effect_id", how="inner")
        .select(*SCHEMAS[table].schema.names, JUDGED)
        for table, some in frames.items()
    }


def _is_early(manifest: Manifest) -> str:
    """Whether a request that is not below the committed offset has an outcome, and this run has it."""
    there = f"(word is not null or letter is not null or {ALIVE})"
    early_request = uncommitted(manifest, "outbox", partition_of("request"), offset_of("request"))
    return f"requests > 0 and renewed and {there} and {early_request}"


def _sent_again(night: Night, unmatched: DataFrame) -> DataFrame:
    """Return effect_id and JUDGED of effects that wait because an operator decided on their last result."""
    decisions = night.new("effect_resolutions").where(f"action = '{ResolutionAction.RESEND.value}'")
    decisions = decisions.selectExpr("effect_id as decided_id", "revision as seen")
    still = unmatched.where(_STILL)
    on_last = (still["effect_id"] == decisions["decided_id"]) & F.expr("seen >= shiftright(word, 3)")
    return still.join(decisions, on=on_last, how="left_semi").select("effect_id", F.lit(False).alias(JUDGED)).persist()


def _torn(night: Night, unmatched: DataFrame, counts: Counter[str], resent: DataFrame | None) -> list[Checked]:
    """Return effects whose transaction is visible in part: without its offset, or without the end of the waiting.

    `resent` are of `_sent_again`; None where no effect has a result and waits.
    """
    overtaking = waiting = None
    if counts[_EARLY]:
        overtaking = _with_payment(night, unmatched.where(_EARLY)).selectExpr(
            f"{partition_of('request')} as source_partition",
            f"{offset_of('request')} as source_offset",
            f"{TOPIC_OF_AT} as topic",
            f"{partition_of(AT)} as partition",
            f"{offset_of(AT)} as offset",
            "payment_id",
        )
    if resent is not None:
        at = "shiftright(waiting, 1)"
        still = unmatched.where(_STILL).join(resent, on="effect_id", how="left_anti")
        waiting = _with_payment(night, still).selectExpr(
            "effect_id", f"{partition_of(at)} as partition", f"{offset_of(at)} as offset", "payment_id"
        )
    return [
        check_early(night, "effects_early", "outbox", CHECK, overtaking),
        effect_rows.check_still_waiting(night, waiting),
    ]


def _breaks(night: Night, unmatched: DataFrame, counts: Counter[str], missing: DataFrame) -> list[DataFrame]:
    """Return breaks; `missing` are rows of effects whose outcome, or its dead letter, must be there and is not."""
    found = []
    if counts[_AGAIN]:
        found.append(_again(night, unmatched.where(_AGAIN)))
    request = ("'effects.requests'", partition_of("request"), offset_of("request"), "payment_id")
    result = ("'effects.results'", partition_of("result"), offset_of("result"), "payment_id")
    cuts = str(night.manifest.settings.late_after_cuts)
    unconsumed = "the outbox did not consume the request of {effect} in {cuts} cuts"
    nothing = "the outbox passed {effect}, and it has no result and does not wait"
    for state, one in (
        (WAITING, waits_too_long(night)),
        (PENDING, finding(Kind.EFFECT, CHECK, unconsumed, effect="effect_id", cuts=cuts)),
        (MISSING, finding(Kind.EFFECT, CHECK, nothing, effect="effect_id")),
    ):
        if counts[state] and (state == MISSING or night.late_cut is not None):
            rows = _with_payment(night, missing.where(F.col("state") == state))
            found.append(breaks(rows, one, *request, rechecked="true"))
    if counts[NO_LETTER]:
        rows = _with_payment(night, missing.where(F.col("state") == NO_LETTER))
        found.append(breaks(rows, wrong_result(), *result, rechecked="true"))
    if counts[INVALID]:
        rows = _with_payment(night, unmatched.where(F.col("state") == INVALID))
        found.append(breaks(rows, wrong_result(), *result))
    return found


def _again(night: Night, unmatched: DataFrame) -> DataFrame:
    """Return requests beyond the first of their effect. Those of earlier runs were reported then."""
    order = "row_number() over (partition by effect_id order by partition, offset) as nth"
    asked = union(
        [
            frame.selectExpr("effect_id", "partition", "offset", "payment_id", f"{str(fresh).lower()} as fresh")
            for frame, fresh in with_carried(night, "effect_requests", _carried("effect_requests"))
        ]
    ).join(unmatched.select("effect_id"), on="effect_id", how="left_semi")
    found = finding(Kind.DUPLICATE, CHECK, "{effect} was asked for before", effect="effect_id")
    later = asked.selectExpr("*", order).where("fresh and nth > 1")
    return breaks(later, found, "'effects.requests'", "partition", "offset", "payment_id")


def _with_payment(night: Night, rows: DataFrame) -> DataFrame:
    """Return rows of effects with the payment_id of their first request."""
    asked = union([frame for frame, _ in with_carried(night, "effect_requests", _carried("effect_requests"))])
    named = asked.selectExpr(f"{PLACE} as asked_at", "effect_id as asked_id", "payment_id")
    same = (rows["effect_id"] == named["asked_id"]) & (rows["request"] == named["asked_at"])
    return rows.join(named, on=same, how="left")
