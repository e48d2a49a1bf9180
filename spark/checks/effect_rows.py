"""One row for each effect: its requests, results, waiting records and dead letters, aggregated by effect_id.

Invariant: a row has numbers only: places, and words of which the greatest is the last. One aggregate with one shuffle
is therefore enough, however many effects there are.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from shared.events.effects import EffectState
from spark.manifest import Manifest
from spark.night import Kind, finding, union
from spark.places import PLACE, Log

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
    "effects_waiting": {"waiting": f"shiftleft({PLACE}, 1) + if(deleted, 0, 1)"},
    "effect_dead_letters": {"letter": PLACE, "source": "source"},
}
"""By table, the columns that a row adds to its effect."""

NUMBERS: Final = ("request", "word", "contrary", "resends", "result", "source", "waiting", "letter")

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
    `result`, `waiting`, `letter`, of the last; `source`, the last place in effects.requests that one was made from;
    `waited`, whether it did when the run began; `renewed`, whether this run has more of it than its requests.
    """
    source = Log(manifest, "effects.requests").source()
    parts = []
    for table, some in frames.items():
        columns = {**dict.fromkeys(NUMBERS, "cast(null as bigint)"), **TABLES[table]}
        for frame, fresh in some:
            named = frame.selectExpr("*", f"{source} as source")
            texts = [f"{text} as {name}" for name, text in columns.items()]
            parts.append(named.selectExpr("effect_id", *texts, f"{str(fresh).lower()} as fresh"))
    return (
        union(parts)
        .groupBy("effect_id")
        .agg(
            F.expr("count(request) as requests"),
            F.expr("min(request) as request"),
            *(F.expr(f"max({name}) as {name}") for name in NUMBERS if name != "request"),
            F.expr(
                "coalesce(max(if(fresh, null, waiting)) & 1, 0) = 1 and max(if(fresh, null, word)) is null as waited"
            ),
            F.expr("max(fresh and coalesce(word, waiting, letter) is not null) as renewed"),
        )
    )


def wrong_result(check: str) -> str:
    """Return a finding on an effect whose last result is invalid; `check` is as breaks name it."""
    unknown = finding(Kind.EFFECT, check, "the state of {effect} is none", effect="effect_id")
    contrary = finding(Kind.EFFECT, check, "two results of one revision of {effect} differ", effect="effect_id")
    silent = finding(Kind.EFFECT, check, "{effect} failed, and is not in effects.dead-letter", effect="effect_id")
    return f"case when {STATE_CODE} = {UNKNOWN} then {unknown} when {CONTRADICTED} then {contrary} else {silent} end"
