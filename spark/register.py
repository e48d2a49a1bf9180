"""The register of breaks: which are open after a run, since when, which ended, and which a person explained.

A break has an identity: its kind, its comparison, and either the record at fault or a subject, such as an account. It
opens in the first run that finds it. A fact stays open for good; a state that is rechecked stays open while runs find
it. An explanation ends neither: it says that a person accounts for the break with the detail that it had then. If
another amount is missing the next night, the break is unexplained again. A break that ended and opens again is
unexplained too.

    explanations.jsonl    in the lake: a JSON object on each line; lines are only added

Invariant: the register of a run has every break that was open before it or is now. It is a function of the run before
and of what the checks found. Nothing is ever taken out of an earlier run's register. Each explanation names the digest
of the one before it, and each cut's manifest that of the newest. So no explanation that a run has used can be changed
or removed unnoticed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark.lake import LakeError, write_atomically
from spark.manifest import Manifest
from spark.night import BREAKS, Kind, frame
from spark.report import Break, Breaks, Count, Explained, breaks_of, iso
from spark.runs import CARRY, Runs
from spark.schemas import MONEY

EXPLANATIONS: Final = "explanations.jsonl"


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One explanation of one break."""

    break_id: str
    detail: str  # of the break when it was explained
    by: str  # the person
    at_ms: int  # when, since 1970 UTC
    reason: str
    previous: str = ""  # digest of the explanation before; empty for the first
    digest: str = ""  # SHA-256 over all other fields, hex


NAME: Final = "register"
"""Name of the table in a run's folder, and under which the next run reads it."""


class State(StrEnum):
    """The state of a break after a run."""

    OPENED = "opened"  # by this run
    OPEN = "open"  # since an earlier one
    CLOSED = "closed"  # by this run: the records do not show it any more


REGISTER: Final = StructType(
    [
        StructField("break_id", StringType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("opened_sequence", IntegerType(), nullable=False),  # of the cut
        StructField("opened_at_ms", LongType(), nullable=False),  # when that cut was taken, since 1970 UTC
        *BREAKS,
    ]
)

_RECORD: Final = "concat_ws(':', topic, partition, offset)"
_KEY: Final = f"concat_ws('|', kind, check, coalesce(subject, nullif({_RECORD}, ''), payment_id))"
_ID_DIGITS: Final = 16


def update(found: DataFrame, before: DataFrame | None, manifest: Manifest) -> DataFrame:
    """Return the register after a run.

    Args:
        found: BREAKS, of all checks of the run.
        before: the register of the run before; None where there is none.
    """
    now = identified(found).select(
        "*",
        F.lit(State.OPENED.value).alias("state"),
        F.lit(manifest.sequence).alias("opened_sequence"),
        F.lit(manifest.taken_at_ms).cast("long").alias("opened_at_ms"),
    )
    if before is None:
        return now.select(*REGISTER.fieldNames())
    known = before.where(F.col("state") != State.CLOSED.value)
    since = known.select("break_id", F.struct("opened_sequence", "opened_at_ms", "rechecked").alias("since"))
    again = now.drop("state").join(since, "break_id", how="left")
    first = {name: F.coalesce(f"since.{name}", name).alias(name) for name in ("opened_sequence", "opened_at_ms")}
    # A fact stays one where a later run finds a state with its identity
    rechecked = (F.col("rechecked") & F.coalesce("since.rechecked", F.lit(True))).alias("rechecked")
    state = F.when(F.col("since").isNull(), State.OPENED.value).otherwise(State.OPEN.value).alias("state")
    changed = {**first, "rechecked": rechecked, "state": state}
    still = again.select(*(changed.get(name, F.col(name)) for name in REGISTER.names))
    rest = known.join(now.select("break_id"), "break_id", how="left_anti")
    ended = F.when(F.col("rechecked"), State.CLOSED.value).otherwise(State.OPEN.value)
    return still.unionByName(rest.withColumn("state", ended)).select(*REGISTER.fieldNames())


def identified(found: DataFrame, *more: str) -> DataFrame:
    """Return BREAKS, and `more` columns, with `break_id`: 16 hexadecimal digits.

    Several breaks of one record by one comparison are numbered in the order of their details.
    """
    nth = "row_number() over (partition by break_key order by detail) as nth"
    numbered = found.selectExpr("*", f"{_KEY} as break_key").selectExpr("*", nth)
    key = "if(nth = 1, break_key, concat_ws('|', break_key, nth))"
    return numbered.selectExpr(f"left(sha2({key}, 256), {_ID_DIGITS}) as break_id", *BREAKS.fieldNames(), *more)


def open_breaks(
    spark: SparkSession,
    rows: DataFrame,
    explanations: Sequence[Explanation],
    listed_max: int,
    *,
    dated: bool = True,
) -> Breaks:
    """Return the open breaks of a register, with the explanations that its run knows.

    Args:
        dated: whether the register says since when breaks are open. That of a run from the beginning does not: there,
            every explanation of a break with the same detail counts.
    """
    open_ = rows.where(F.col("state") != State.CLOSED.value)
    explained = _explained(open_, newest_explanations(explanations), dated=dated)
    keys = frame(spark, _KEYS, [{"break_id": one.break_id} for one in explained])
    unexplained = open_.join(F.broadcast(keys), "break_id", how="left_anti")
    counted = (
        unexplained.groupBy("kind", "check", "currency")
        .agg(
            F.count(F.lit(1)).alias("breaks"),
            F.coalesce(F.sum("amount_minor"), F.lit(0)).cast(MONEY).alias("amount_minor"),
            F.min("opened_at_ms").alias("oldest_at_ms"),
        )
        .collect()
    )
    # Nulls come first, as in the report's own order
    order = ("kind", "topic", "partition", "offset", "check", "payment_id", "detail")
    first = unexplained.orderBy(*order).limit(listed_max).collect() if counted else []
    states = {row["state"]: row["count"] for row in rows.groupBy("state").count().collect()}
    return breaks_of(
        [Count(**row.asDict()) for row in counted],
        map(_listed, first),
        [kind.value for kind in Kind],
        listed_max,
        explained=explained,
        opened=states.get(State.OPENED.value, 0),
        closed=states.get(State.CLOSED.value, 0),
    )


_KEYS: Final = StructType([StructField("break_id", StringType())])


def _explained(open_: DataFrame, known: Mapping[tuple[str, str], Explanation], *, dated: bool) -> list[Break]:
    """Return the open breaks that have an explanation as they are now."""
    if not known:
        return []
    rows = open_.where(F.col("break_id").isin(sorted({break_id for break_id, _ in known}))).collect()
    return [
        msgspec.structs.replace(_listed(row), explained=Explained(one.by, iso(one.at_ms), one.reason))
        for row in rows
        if (one := explanation_of(known, row["break_id"], row["detail"], row["opened_at_ms"] if dated else 0))
        is not None
    ]


def _listed(row: Row) -> Break:
    return Break(
        row["kind"],
        row["check"],
        row["topic"],
        row["partition"],
        row["offset"],
        row["payment_id"],
        row["detail"],
        row["break_id"],
        row["opened_sequence"],
        iso(row["opened_at_ms"]),
        row["currency"],
        row["amount_minor"],
    )


SUMS: Final = "balances"
"""The check whose breaks each run finds again."""


def of_former_version(spark: SparkSession, runs: Runs, cuts: Sequence[Manifest]) -> DataFrame | None:
    """Return a register of all breaks that runs of a version without one found; None where they found none.

    Those runs carried no missing records on, so only an explanation accounts for such a break.
    """
    taken_at_ms: dict[int, int] = {}
    paths = []
    for cut in cuts:
        record = runs.record(cut)
        for name, table in record.frames.items() if record is not None else ():
            if name.startswith("breaks/") and name != f"breaks/{SUMS}":
                taken_at_ms[cut.sequence] = cut.taken_at_ms
                paths += [f"file://{runs.directory(cut) / file.path}" for file in table.files]
    if not paths:
        return None
    times = " ".join(f"when {sequence} then {at_ms}L" for sequence, at_ms in taken_at_ms.items())
    found = spark.read.schema(BREAKS).parquet(*paths).withColumn("rechecked", F.lit(False))
    sequence = F.expr("int(regexp_extract(_metadata.file_path, 'runs/([0-9]+)-', 1))").alias("opened_sequence")
    return (
        identified(found.select("*", sequence), "opened_sequence")
        .select(
            "*",
            F.lit(State.OPEN.value).alias("state"),
            F.expr(f"case opened_sequence {times} end").alias("opened_at_ms"),
        )
        .select(*REGISTER.fieldNames())
    )


class Entry(msgspec.Struct, frozen=True):
    """A row of the register, read without Spark."""

    break_id: str
    state: str
    opened_sequence: int
    opened_at_ms: int
    kind: str
    check: str
    detail: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    payment_id: str | None = None
    subject: str | None = None
    currency: str | None = None
    amount_minor: Decimal | None = None
    rechecked: bool = False


_decode_entry = msgspec.json.Decoder(Entry).decode


def entries(runs: Runs, manifest: Manifest) -> list[Entry]:
    """Return the register of the run over a cut, oldest break first.

    Raises LakeError as `Runs.lines` does.
    """
    found = [_decode_entry(line) for line in runs.lines(manifest, f"{CARRY}/{NAME}")]
    return sorted(found, key=lambda one: (one.opened_sequence, one.kind, one.check, one.break_id))


def newest_run(runs: Runs, cuts: Sequence[Manifest]) -> Manifest | None:
    """Return the last cut with a complete run; None without any."""
    return next((cut for cut in reversed(cuts) if runs.record(cut) is not None), None)


_encode_explanation = msgspec.json.Encoder(order="sorted").encode
_decode_explanation = msgspec.json.Decoder(Explanation).decode


def read_explanations(root: Path, head: str | None = None) -> list[Explanation]:
    """Return the explanations in a lake, oldest first, up to the one whose digest is `head`, or all of them.

    Raises LakeError if one was altered or removed.
    """
    if head == "":
        return []
    path = root / EXPLANATIONS
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    found: list[Explanation] = []
    for number, line in enumerate(lines, 1):
        if found and found[-1].digest == head:
            return found
        try:
            one = _decode_explanation(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path}:{number} was altered: {error}") from error
        before = found[-1].digest if found else ""
        if (one.previous, one.digest) != (before, _digest_of(one)):
            raise LakeError(f"{path}:{number} was altered, or a line before it was removed")
        found.append(one)
    if head and (not found or found[-1].digest != head):
        raise LakeError(f"{path} does not have the explanation {head}, which a cut names: restore the file")
    return found


def head_of(root: Path) -> str:
    """Return the digest of the newest explanation; empty without any. Raises LakeError as
    `read_explanations` does."""
    found = read_explanations(root)
    return found[-1].digest if found else ""


def explain(root: Path, break_id: str, detail: str, *, by: str, at_ms: int, reason: str) -> Explanation:
    """Append an explanation, on disk when this returns. Hold the lake's lock meanwhile.

    A write that fails leaves the file as it was: half a line would end every later run.

    Raises LakeError if the file was altered.
    """
    before = read_explanations(root)
    blank = Explanation(break_id, detail, by, at_ms, reason, before[-1].digest if before else "")
    made = msgspec.structs.replace(blank, digest=_digest_of(blank))
    lines = b"".join(_encode_explanation(one) + b"\n" for one in [*before, made])
    write_atomically(root / EXPLANATIONS, lines)
    return made


def newest_explanations(explanations: Sequence[Explanation]) -> dict[tuple[str, str], Explanation]:
    """Return the newest explanation of each break as it was, by its id and detail."""
    return {(one.break_id, one.detail): one for one in explanations}


def explanation_of(
    known: Mapping[tuple[str, str], Explanation], break_id: str, detail: str, opened_at_ms: int
) -> Explanation | None:
    """Return the newest explanation of a break as it is; None if there is none since it opened.

    One from before was for a break that has ended: what it explained is over, and the same detail is a new event.
    """
    one = known.get((break_id, detail))
    return one if one is not None and one.at_ms >= opened_at_ms else None


def _digest_of(one: Explanation) -> str:
    return hashlib.sha256(_encode_explanation(msgspec.structs.replace(one, digest=""))).hexdigest()
