"""Outcomes without a request in this run: decided again, expired, or of an effect that was never requested.

History is read for these effects alone.

Invariant: a request that no cut has is not a break where requests of its partition had ended before they could land.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.checks.effect_rows import (
    ALIVE,
    AT,
    CODES,
    CONTRADICTED,
    FAILED,
    STATE_CODE,
    TOPIC_OF_AT,
    UNKNOWN,
    effects,
    wrong_result,
)
from spark.night import Kind, Night, breaks, finding, union
from spark.places import PLACE, Log, by_partition, offset_of, partition_of

_DECIDED, _WRONG, _EARLY, _EXPIRED, _ORPHAN = "decided", "wrong", "early", "expired", "orphan"
_BEFORE_CODE: Final = "(before.word & 7)"


class Unrequested(NamedTuple):
    """The result of this check."""

    breaks: list[DataFrame]  # in parts
    figures: Mapping[str, int]  # to be added to the run's
    open: DataFrame  # effect_id of those in flight
    in_flight: int


def check(night: Night, check_name: str, rows: DataFrame) -> Unrequested:
    """Judge effects that have no request in this run, rows of `effects`."""
    judged = _beside_history(night, rows).selectExpr("*", f"{_state(night)} as judged").where("judged is not null")
    kept = judged.persist()
    changes = {
        **{
            f"effects_{state}": f"count_if(judged = '{_DECIDED}' and {STATE_CODE} = {code})"
            f" - count_if(judged = '{_DECIDED}' and {_BEFORE_CODE} = {code})"
            for state, code in CODES.items()
        },
        "effects_resent": f"sum(if(judged = '{_DECIDED}', resends - coalesce(before.resends, 0), 0))",
        "expired": f"count_if(judged = '{_EXPIRED}')",
        _EARLY: f"count_if(judged = '{_EARLY}')",
        _WRONG: f"count_if(judged = '{_WRONG}')",
        _ORPHAN: f"count_if(judged = '{_ORPHAN}')",
    }
    counted = kept.agg(*(F.expr(text).alias(name) for name, text in changes.items())).collect()[0].asDict()
    counts = {name: int(count or 0) for name, count in counted.items()}
    found = []
    if counts[_WRONG]:
        at = (partition_of("result"), offset_of("result"))
        wrong = kept.where(f"judged = '{_WRONG}'")
        found.append(breaks(wrong, wrong_result(check_name), "'effects.results'", *at, "payment_id"))
    if counts[_ORPHAN]:
        orphan = finding(Kind.EFFECT, check_name, "nobody asked for {effect}", effect="effect_id")
        rows = kept.where(f"judged = '{_ORPHAN}'")
        found.append(breaks(rows, orphan, TOPIC_OF_AT, partition_of(AT), offset_of(AT), "null"))
    figures = {name: count for name, count in counts.items() if name not in {_EARLY, _WRONG, _ORPHAN}}
    return Unrequested(found, figures, kept.where(f"judged = '{_EARLY}'").select("effect_id"), counts[_EARLY])


def _beside_history(night: Night, rows: DataFrame) -> DataFrame:
    """Add `asked` and `payment_id` of an earlier cut's request, `before`, its outcome then, and `resolved`."""
    ids = rows.select("effect_id")

    def held(table: str) -> DataFrame:
        return night.history(table).join(ids, on="effect_id", how="left_semi")

    asked = (
        held("effect_requests")
        .groupBy("effect_id")
        .agg(F.expr("count(*) as asked"), F.expr("min(payment_id) as payment_id"))
    )
    decided = {table: [(held(table), False)] for table in ("effect_results", "effect_dead_letters")}
    before = effects(night.manifest, decided).selectExpr("effect_id", "struct(word, resends, letter) as before")
    persons = union(
        [read("effect_resolutions").selectExpr(f"{PLACE} as resolved") for read in (night.new, night.history)]
    )
    resolved = persons.join(rows.select("source"), on=persons["resolved"] == F.col("source"), how="left_semi")
    beside = rows.join(asked, on="effect_id", how="left").join(before, on="effect_id", how="left")
    return _last(beside.join(resolved, on=beside["source"] == resolved["resolved"], how="left"))


def _last(beside: DataFrame) -> DataFrame:
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
    return beside.selectExpr(
        *(f"{replaced[name]} as {name}" if name in replaced else name for name in beside.columns), "word as own"
    )


def _state(night: Night) -> str:
    manifest = night.manifest
    log = Log(manifest, "effects.requests")
    beginning = log.beginning
    # A person's decision may come when the request itself has ended; what waits names no source
    ended = f"""if(source is null or resolved is not null, {beginning(partition_of(AT))} > 0,
        {offset_of("source")} < {beginning(partition_of("source"))})"""
    late = "false" if manifest.settled else f"{offset_of('source')} >= {log.end(partition_of('source'))}"
    letters = dict.fromkeys(Log(manifest, "effects.dead-letter").unstable, -1)
    unstable = f"{by_partition(partition_of('result'), letters)} is not null"
    return f"""case
        when asked > 0 and own is null then null
        when asked > 0 and ({STATE_CODE} = {UNKNOWN} or {CONTRADICTED}) then '{_WRONG}'
        when asked > 0 and {STATE_CODE} = {FAILED} and letter is null then if({unstable}, '{_EARLY}', '{_WRONG}')
        when asked > 0 then '{_DECIDED}'
        when coalesce({late}, false) then '{_EARLY}'
        when coalesce({ended}, false) then '{_EXPIRED}'
        when own is null and letter is null and not {ALIVE} then null
        else '{_ORPHAN}' end"""
