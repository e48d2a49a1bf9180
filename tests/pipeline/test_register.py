"""The register of breaks: identities, what stays open, what ends, and explanations, night by night."""

import errno
import resource
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark import register
from spark.audit import audit
from spark.lake import Lake, LakeError
from spark.manifest import Manifest
from spark.night import BREAKS, Kind, frame
from spark.register import State
from tests.pipeline.nights import manifest
from tests.world import World

Row = dict[str, object]


def fact(offset: int, detail: str = "twice") -> Row:
    return broken(Kind.DUPLICATE, offset, detail, rechecked=False)


def state(offset: int, detail: str = "not there") -> Row:
    return broken(Kind.MISSING, offset, detail, rechecked=True)


def broken(kind: Kind, offset: int, detail: str, *, rechecked: bool) -> Row:
    at = {"topic": "ledger.postings", "partition": 1, "offset": offset}
    return {"kind": kind.value, "check": "a:b", "detail": detail, "rechecked": rechecked, **at}


def of_sum(subject: str, detail: str) -> Row:
    row = {"kind": Kind.AMOUNT.value, "check": "conservation", "subject": subject, "detail": detail, "rechecked": True}
    return {**row, "currency": "EUR", "amount_minor": str(2**70)}


class Nights:
    """Runs that find what they are given."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._register: DataFrame | None = None
        self._cut: Manifest | None = None

    def run(self, *found: Row) -> dict[tuple[str, int], str]:
        """Return offset or subject, and the cut that opened it, with the state after the run."""
        world = World()
        blank = manifest(world, previous=self._cut)
        self._cut = msgspec.structs.replace(blank, taken_at_ms=1_000 * blank.sequence)
        rows = register.update(frame(self._spark, BREAKS, found), self._register, self._cut).collect()
        self._register = self._spark.createDataFrame(rows, register.REGISTER)
        assert len({row["break_id"] for row in rows}) == len(rows)
        assert all(row["opened_at_ms"] == 1_000 * row["opened_sequence"] for row in rows)
        return {(str(row["subject"] or row["offset"]), row["opened_sequence"]): row["state"] for row in rows}

    def rows(self) -> DataFrame:
        """The register of the last run."""
        assert self._register is not None
        return self._register


def test_a_fact_stays_open_and_a_state_ends_when_it_is_not_found(spark: SparkSession) -> None:
    nights = Nights(spark)
    assert nights.run(fact(1), state(2), state(3)) == {
        ("1", 1): State.OPENED,
        ("2", 1): State.OPENED,
        ("3", 1): State.OPENED,
    }
    assert nights.run(state(2), fact(4)) == {
        ("1", 1): State.OPEN,
        ("2", 1): State.OPEN,
        ("3", 1): State.CLOSED,
        ("4", 2): State.OPENED,
    }
    assert nights.run() == {("1", 1): State.OPEN, ("2", 1): State.CLOSED, ("4", 2): State.OPEN}
    assert nights.run(state(2)) == {("1", 1): State.OPEN, ("2", 4): State.OPENED, ("4", 2): State.OPEN}


def test_a_fact_stays_open_after_a_state_with_its_identity_has_ended(spark: SparkSession) -> None:
    nights = Nights(spark)
    nights.run(broken(Kind.MISSING, 1, "lost", rechecked=False))
    assert nights.run(state(1)) == {("1", 1): State.OPEN}
    for _ in range(2):
        assert nights.run() == {("1", 1): State.OPEN}


def test_a_sum_is_one_break_whatever_its_amount(spark: SparkSession) -> None:
    nights = Nights(spark)
    nights.run(of_sum("closing EUR", "3"), of_sum("closing USD", "1"))
    assert nights.run(of_sum("closing EUR", "4")) == {
        ("closing EUR", 1): State.OPEN,
        ("closing USD", 1): State.CLOSED,
    }


def test_breaks_of_one_record_differ_by_their_details(spark: SparkSession) -> None:
    once, twice = [identities(spark, fact(1, "a"), fact(1, "b"), fact(2)) for _ in range(2)]
    assert once == twice
    assert len(set(once.values())) == 3
    assert {len(one) for one in once.values()} == {16}


@pytest.mark.parametrize("detail", ["3", "4"])
def test_an_explanation_is_for_one_break_as_it_is(spark: SparkSession, detail: str) -> None:
    nights = Nights(spark)
    nights.run(of_sum("closing EUR", "3"), of_sum("closing USD", "1"), state(2))
    nights.run(of_sum("closing EUR", detail), of_sum("closing USD", "1"), of_sum("in transit EUR", "1"), fact(9))
    rows = nights.rows()
    [break_id] = (row["break_id"] for row in rows.collect() if row["subject"] == "closing EUR")
    by = register.Explanation(break_id, "3", "ann", 1_007, "known")
    breaks = register.open_breaks(spark, rows, [by], 10)
    explained = [break_id] if detail == "3" else []
    assert [one.break_id for one in breaks.explained] == explained
    assert breaks.total == len(breaks.listed) == 4 - len(explained)
    assert (breaks.opened, breaks.closed) == (2, 1)
    assert breaks.oldest_at == "1970-01-01T00:00:01.000Z"


@pytest.mark.parametrize(("at_ms", "explains"), [(1_500, False), (4_000, True)])
def test_an_explanation_ends_with_its_break(spark: SparkSession, at_ms: int, explains: bool) -> None:
    """The same amount is missing again, weeks after the first one was accounted for and came."""
    nights = Nights(spark)
    for missing in (True, False, False, True):
        nights.run(*([of_sum("in transit EUR", "100")] if missing else []))
    [row] = nights.rows().collect()
    by = register.Explanation(row["break_id"], "100", "ann", at_ms, "known")
    breaks = register.open_breaks(spark, nights.rows(), [by], 10)
    assert (len(breaks.explained), breaks.total) == ((1, 0) if explains else (0, 1))
    # A run from the beginning does not know when it opened
    assert register.open_breaks(spark, nights.rows(), [by], 10, dated=False).total == 0


def identities(spark: SparkSession, *found: Row) -> dict[tuple[int, str], str]:
    rows = register.identified(frame(spark, BREAKS, found)).collect()
    return {(row["offset"], row["detail"]): row["break_id"] for row in rows}


def test_the_register_is_read_without_spark() -> None:
    line = b'{"break_id":"a","state":"open","opened_sequence":1,"opened_at_ms":2,"kind":"amount","check":"c",'
    line += (
        b'"detail":"d","subject":"closing EUR","currency":"EUR","amount_minor":1180591620717411303424,"rechecked":true}'
    )
    entry = msgspec.json.decode(line, type=register.Entry)
    assert (entry.subject, entry.amount_minor, entry.topic) == ("closing EUR", Decimal(2**70), None)


def explained(root: Path, *breaks: str) -> list[str]:
    made = [register.explain(root, one, f"detail {one}", by="ann", at_ms=7, reason="known") for one in breaks]
    return [one.digest for one in made]


def names(found: Sequence[register.Explanation]) -> list[str]:
    return [one.break_id for one in found]


def test_a_run_reads_the_explanations_that_its_cut_names(tmp_path: Path) -> None:
    assert register.head_of(tmp_path) == ""
    assert register.read_explanations(tmp_path, "") == []
    first, _, last = explained(tmp_path, "a", "b", "c")
    assert register.head_of(tmp_path) == last
    assert names(register.read_explanations(tmp_path)) == ["a", "b", "c"]
    assert names(register.read_explanations(tmp_path, first)) == ["a"]
    assert register.read_explanations(tmp_path, "") == []


@pytest.mark.parametrize("change", ["altered", "removed", "reordered", "torn"])
def test_a_changed_explanation_is_noticed(tmp_path: Path, change: str) -> None:
    *_, last = explained(tmp_path, "a", "b", "c")
    path = tmp_path / register.EXPLANATIONS
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "altered": [lines[0].replace(b"known", b"other"), *lines[1:]],
        "removed": [lines[0], lines[2]],
        "reordered": [lines[1], lines[0], lines[2]],
        "torn": [*lines[:2], lines[2][:40]],
    }[change]
    path.write_bytes(b"".join(changed))
    with pytest.raises(LakeError, match="was altered"):
        register.read_explanations(tmp_path, last)
    with pytest.raises(LakeError, match="was altered"):
        register.explain(tmp_path, "d", "", by="ann", at_ms=8, reason="known")
    [fault] = audit(Lake(tmp_path)).faults
    assert "was altered" in fault


def test_an_explanation_that_fails_in_the_middle_of_its_write_leaves_the_others(tmp_path: Path) -> None:
    explained(tmp_path, "a", "b")
    before = (tmp_path / register.EXPLANATIONS).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
    try:
        with pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
            explained(tmp_path, "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / register.EXPLANATIONS).read_bytes() == before
    explained(tmp_path, "c")
    assert names(register.read_explanations(tmp_path)) == ["a", "b", "c"]
    assert (tmp_path / register.EXPLANATIONS).read_bytes().startswith(before)


def test_explanations_that_a_cut_names_must_be_there(tmp_path: Path) -> None:
    *_, last = explained(tmp_path, "a", "b")
    path = tmp_path / register.EXPLANATIONS
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(LakeError, match="restore the file"):
        register.read_explanations(tmp_path, last)
