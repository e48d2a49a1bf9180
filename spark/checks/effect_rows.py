"""One row for each effect: its requests, results, waiting records and dead letters, aggregated by effect_id.

Invariant: a row has numbers only: places, and words of which the greatest is the last. One aggregate with one shuffle
is therefore enough, however many effects there are.

Outcomes without a request in this run were decided again, expired, or are of an effect that was never requested.
History is read for these effects alone. A request that no cut has is not a break where requests of its partition had
ended before they could land.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_WAITING
from shared.events.effects import EffectState
from spark.history import bounds_of, since, widening
from spark.lake import Bounds, within
from spark.manifest import Manifest
from spark.night import JUDGED, Checked, Kind, Night, breaks, by_partition, finding, is_late, judged_before, union
from spark.places import PLACE, Log, offset_of, partition_of

CHECK: Final = "requests:results"
CODES: Final[Mapping[str, int]] = {state.value: code for code, state in enumerate(EffectState)}
UNKNOWN: Final = 7
FAILED: Final = CODES[EffectState.FAILED.value]
_CASES = " ".join(f"when '{state}' then {code}" for state, code in CODES.items())
_CODE = f"case state {_CASES} else {UNKNOWN} end"

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "effect_requests": {"request": PLACE},
    "effect_results": {
        "word": f"shiftleft(revision, 3) + {_CODE}",
        "contrary": f"shiftleft(revision, 3) + 7 - {_CODE}",
        "resends": "resends",
        "result": PLACE,
        "source": "source",
    },
    "effects_waiting": {"waiting": f"shiftleft({PLACE}, 1) + if(deleted, 0, 1)", "not_before_ms": "not_before_ms"},
    "effect_dead_letters": {"letter": PLACE, "source": "source"},
}
"""By table, the columns that a row adds to its effect."""

NUMBERS: Final = ("request", "word", "contrary", "resends", "result", "source", "waiting", "not_before_ms", "letter")

STATE_CODE: Final = "(word & 7)"  # of the last revision; the largest, where two results of one revision differ
CONTRADICTED: Final = "(word & 7) <> 7 - (contrary & 7)"
ALIVE: Final = "coalesce(waiting & 1, 0) = 1"  # whether an effect waits, by the last word
AT: Final = "coalesce(result, shiftright(waiting, 1), letter)"  # the place of an effect's outcome, and its topic
TOPIC_OF_AT: Final = (
    "if(result is not null, 'effects.results', if(waiting is not null, 'effects.waiting', 'effects.dead-letter'))"
)


def effects(manifest: Manifest, frames: Mapping[str, list[tuple[DataFrame, bool]]]) -> DataFrame:
    """Return one row for each effect; `frames` has rows by table, each with whether they are new.

    Columns: effect_id; `requests`, their number; `request`, the place of the first; `word`, `contrary`, `resends`,
    `result`, `waiting`, `not_before_ms`, `letter`, of the last; `source`, the last place in effects.requests
    that one was made from; `waited`, whether it did when the run began; `renewed`, whether this run has more of it than
    its requests; JUDGED; `counted`, whether an earlier run counted its result.
    """
    source = Log(manifest, "effects.requests").source()
    parts = []
    for table, some in frames.items():
        columns = {**dict.fromkeys(NUMBERS, "cast(null as bigint)"), **TABLES[table]}
        for frame, fresh in some:
            named = frame.selectExpr("*", f"{source} as source")
            texts = [f"{text} as {name}" for name, text in columns.items()]
            parts.append(named.selectExpr("effect_id", *texts, f"{str(fresh).lower()} as fresh", JUDGED))
    waiting, word = (F.max(F.when(~F.col("fresh"), F.col(name))) for name in ("waiting", "word"))
    return (
        union(parts)
        .groupBy("effect_id")
        .agg(
            F.count("request").alias("requests"),
            F.min("request").alias("request"),
            *(F.max(name).alias(name) for name in NUMBERS if name != "request"),
            ((F.coalesce(waiting.bitwiseAND(1), F.lit(0)) == 1) & word.isNull()).alias("waited"),
            F.bool_or(F.col("fresh") & F.coalesce("word", "waiting", "letter").isNotNull()).alias("renewed"),
            F.bool_or(JUDGED).alias(JUDGED),
            (F.bool_or(JUDGED) & word.isNotNull()).alias("counted"),
        )
    )


def wrong_result() -> str:
    """Return a finding on an effect whose last result is invalid."""
    unknown = finding(Kind.EFFECT, CHECK, "the state of {effect} is none", effect="effect_id")
    contrary = finding(Kind.EFFECT, CHECK, "two results of one revision of {effect} differ", effect="effect_id")
    letter = finding(Kind.EFFECT, CHECK, "{effect} failed, and is not in effects.dead-letter", effect="effect_id")
    return f"case when {STATE_CODE} = {UNKNOWN} then {unknown} when {CONTRADICTED} then {contrary} else {letter} end"


_DECIDED, _INVALID, _EARLY, _EXPIRED, _ORPHAN = "decided", "invalid", "early", "expired", "orphan"
_OVERDUE = "overdue"
_WAITS: Final = f"coalesce(asked > 0 and {ALIVE}, false)"
"""Whether an effect of an earlier cut waits. An effect without a result was carried, so an operator sent it again."""
_BEFORE_CODE: Final = "(before.word & 7)"


def waits_too_long(night: Night) -> str:
    """Return a finding on an effect that is overdue."""
    text = "{effect} was due for another attempt {cuts} cuts ago, and waits nevertheless"
    return finding(Kind.EFFECT, CHECK, text, effect="effect_id", cuts=str(night.manifest.settings.late_after_cuts))


def overdue(night: Night) -> str:
    """Whether a waiting effect was due for too many cuts."""
    late_cut = night.late_cut
    return "false" if late_cut is None else f"coalesce(not_before_ms < {late_cut.taken_at_ms}L, false)"


class Unrequested(NamedTuple):
    """The result of this check."""

    breaks: list[DataFrame]  # in parts
    figures: Mapping[str, int]  # to be added to the run's
    open: DataFrame  # effect_id and JUDGED of those in flight whose request is beyond the cut
    in_flight: int
    waits: DataFrame | None  # the same of those that wait after a result, which is counted; None without any
    waiting: int  # of these, those that are not overdue


def check_unrequested(night: Night, rows: DataFrame) -> Unrequested:
    """Judge effects that have no request in this run, rows of `effects`."""
    judged_rows = _with_history(night, rows).selectExpr(
        "*", f"{_state(night)} as outcome", f"{_WAITS} as waits", f"{_WAITS} and {overdue(night)} as {_OVERDUE}"
    )
    kept = judged_rows.where("outcome is not null or waits").persist()
    changes = {
        **{
            f"effects_{state}": f"count_if(outcome = '{_DECIDED}' and {STATE_CODE} = {code})"
            f" - count_if(outcome = '{_DECIDED}' and {_BEFORE_CODE} = {code})"
            for state, code in CODES.items()
        },
        "effects_resent": f"sum(if(outcome = '{_DECIDED}', resends - coalesce(before.resends, 0), 0))",
        "expired": f"count_if(outcome = '{_EXPIRED}')",
        _EARLY: f"count_if(outcome = '{_EARLY}')",
        _INVALID: f"count_if(outcome = '{_INVALID}')",
        _ORPHAN: f"count_if(outcome = '{_ORPHAN}')",
        "effects_waiting": "count_if(waits)",
        _OVERDUE: f"count_if({_OVERDUE})",
    }
    counted = kept.agg(*(F.expr(text).alias(name) for name, text in changes.items())).collect()[0].asDict()
    counts = {name: int(count or 0) for name, count in counted.items()}
    found = []
    if counts[_INVALID]:
        at = (partition_of("result"), offset_of("result"))
        wrong = kept.where(F.col("outcome") == _INVALID)
        found.append(breaks(wrong, wrong_result(), "'effects.results'", *at, "payment_id"))
    if counts[_ORPHAN]:
        orphan = finding(Kind.EFFECT, CHECK, "no request for {effect}", effect="effect_id")
        rows = kept.where(F.col("outcome") == _ORPHAN)
        found.append(breaks(rows, orphan, TOPIC_OF_AT, partition_of(AT), offset_of(AT), "null"))
    if counts[_OVERDUE]:
        request = ("'effects.requests'", partition_of("asked_at"), offset_of("asked_at"), "payment_id")
        rows = kept.where(_OVERDUE)
        found.append(breaks(rows, waits_too_long(night), *request, rechecked="true"))
    figures = {name: count for name, count in counts.items() if name not in {_EARLY, _INVALID, _ORPHAN, _OVERDUE}}
    waits = kept.where("waits").select("effect_id", F.col(_OVERDUE).alias(JUDGED))
    return Unrequested(
        found,
        figures,
        kept.where(F.col("outcome") == _EARLY).select("effect_id", F.lit(False).alias(JUDGED)),
        counts[_EARLY],
        waits if counts["effects_waiting"] else None,
        counts["effects_waiting"] - counts[_OVERDUE],
    )


def _with_history(night: Night, rows: DataFrame) -> DataFrame:
    """Add `asked`, `asked_at` and `payment_id` of earlier requests, `before`, the outcome then, and `resolved`."""
    ahead = f"coalesce({_ahead(night.manifest)}, false)"
    wanted = rows.where(f"not {ahead}").select("effect_id", F.col("source").alias("at"))
    sources = bounds_of(wanted)
    asked = _requests(night, wanted, sources)
    missing = wanted.join(asked, on="effect_id", how="left_anti").persist()
    if not missing.isEmpty():
        asked = union([asked, *_older_requests(night, missing)])
        sources = bounds_of(asked.select("at"))
    decided = {
        table: [(_of_effects(night, table, since(night, table, EFFECTS_REQUESTS, sources), wanted), False)]
        for table in ("effect_results", "effect_dead_letters")
    }
    before = effects(night.manifest, decided).selectExpr("effect_id", "struct(word, resends, letter) as before")
    places = bounds_of(rows.selectExpr("source as at"))
    persons = union(
        [
            frame.selectExpr(f"{PLACE} as resolved")
            for frame in (
                night.new("effect_resolutions").where(within(places)),
                night.history("effect_resolutions", places),
            )
        ]
    )
    resolved = persons.join(rows.select("source"), on=persons["resolved"] == F.col("source"), how="left_semi")
    known = rows.join(asked.withColumnRenamed("at", "asked_at"), on="effect_id", how="left").join(
        before, on="effect_id", how="left"
    )
    return _last(known.join(resolved, on=known["source"] == resolved["resolved"], how="left"))


def _of_effects(night: Night, table: str, bounds: Bounds, wanted: DataFrame) -> DataFrame:
    """Return the rows of earlier cuts of some effects, within bounds."""
    found = night.history(table, bounds).join(wanted, on="effect_id", how="left_semi")
    return found.withColumn(JUDGED, F.lit(False))


def _requests(night: Night, wanted: DataFrame, bounds: Bounds) -> DataFrame:
    held = _of_effects(night, "effect_requests", bounds, wanted)
    return held.groupBy("effect_id").agg(
        F.count("*").alias("asked"), F.min("payment_id").alias("payment_id"), F.min(F.expr(PLACE)).alias("at")
    )


def _older_requests(night: Night, missing: DataFrame) -> list[DataFrame]:
    """Return the requests of effects whose outcome does not say where they are, in parts.

    A person's decision names itself as the source, an end of waiting names none, and an effect_id is a digest. Persons
    decide of few effects, and soon: requests are read from the newest on until all are found, or all are read.
    """
    found = []
    for bounds in widening(night, EFFECTS_REQUESTS, _LOOK_BACK):
        found.append(_requests(night, missing, bounds).persist())
        missing = missing.join(found[-1].select("effect_id"), on="effect_id", how="left_anti").persist()
        if missing.isEmpty():
            break
    return found


_LOOK_BACK: Final = 400_000
"""Offsets before the run."""


def _last(known: DataFrame) -> DataFrame:
    """The last revision counts, in whichever cut; a result of this run may only be a copy of an older one."""
    replaced = {
        "word": "greatest(word, before.word)",
        "contrary": "if(word is null, null, if(shiftright(before.word, 3) > shiftright(word, 3), "
        "before.word - 2 * (before.word & 7) + 7, if(shiftright(before.word, 3) = shiftright(word, 3), "
        "greatest(contrary, before.word - 2 * (before.word & 7) + 7), contrary)))",
        "resends": "greatest(resends, before.resends)",
        "letter": "coalesce(letter, before.letter)",
    }
    # A change is counted from `before`; an effect without a result in this run is not changed
    return known.selectExpr(
        *(f"{replaced[name]} as {name}" if name in replaced else name for name in known.columns), "word as own"
    )


def _ahead(manifest: Manifest) -> str:
    """Whether an outcome's source is beyond the cut, so that its request is in no earlier one."""
    log = Log(manifest, "effects.requests")
    return "false" if manifest.settled else f"{offset_of('source')} >= {log.end(partition_of('source'))}"


def _state(night: Night) -> str:
    manifest = night.manifest
    log = Log(manifest, "effects.requests")
    beginning = log.beginning
    # A person's decision may come when the request itself has ended; what waits names no source
    ended = f"""if(source is null or resolved is not null, {beginning(partition_of(AT))} > 0,
        {offset_of("source")} < {beginning(partition_of("source"))})"""
    ahead = _ahead(manifest)
    letters = dict.fromkeys(Log(manifest, "effects.dead-letter").unstable, -1)
    unstable = f"{by_partition(partition_of('result'), letters)} is not null"
    return f"""case
        when asked > 0 and own is null then null
        when asked > 0 and ({STATE_CODE} = {UNKNOWN} or {CONTRADICTED}) then '{_INVALID}'
        when asked > 0 and {STATE_CODE} = {FAILED} and letter is null then if({unstable}, '{_EARLY}', '{_INVALID}')
        when asked > 0 then '{_DECIDED}'
        when coalesce({ahead}, false) then '{_EARLY}'
        when coalesce({ended}, false) then '{_EXPIRED}'
        when own is null and letter is null and not {ALIVE} then null
        else '{_ORPHAN}' end"""


_STILL_WAITING: Final = "effects_still_waiting"
_COLUMNS: Final = ("effect_id", "partition", "offset", "payment_id")  # coordinates in effects.waiting


def check_still_waiting(night: Night, rows: DataFrame | None) -> Checked:
    """Judge effects that have a result and wait, of this run and carried, or carry them. `rows` have _COLUMNS.

    One transaction writes the result and ends the waiting (I7): both are no break while that end may be above the cut.
    """
    every = judged_before(night, _STILL_WAITING, _COLUMNS, rows)
    if every is None:
        return Checked()
    ended = night.new("effects_waiting").where("deleted").selectExpr("effect_id as ended_id", "offset as ended_at")
    later = (every["effect_id"] == ended["ended_id"]) & (every["offset"] < ended["ended_at"])
    numbers = ", ".join(str(number) for number in sorted(Log(night.manifest, EFFECTS_WAITING).unstable))
    over = (
        f"not partition in ({numbers}) or {is_late(night, EFFECTS_WAITING, 'partition', 'offset')}"
        if numbers
        else "true"
    )
    left = every.join(ended, on=later, how="left_anti").select(*_COLUMNS, F.expr(f"{JUDGED} or {over}").alias(JUDGED))
    left = left.persist()
    if left.isEmpty():
        return Checked()
    torn = finding(Kind.TORN, CHECK, "{effect} has a result, and waits nevertheless", effect="effect_id")
    at = (f"'{EFFECTS_WAITING}'", "partition", "offset", "payment_id")
    return Checked(breaks(left.where(JUDGED), torn, *at, rechecked="true"), carry={_STILL_WAITING: left})
