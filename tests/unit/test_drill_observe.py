"""Samples of offsets: rates, sums and lags, and gaps where a part is unknown."""

from deploy.drills.observe import Look, sample
from shared.eos.open_transactions import Offsets

TOPICS = ["in"]
PARTITIONS = {"in": 2, "out": 1}
GROUPS = {"ledger": "in"}


def look(at_s: float, *ends: tuple[int, int], committed: dict[str, dict[tuple[str, int], int]] | None = None) -> Look:
    """A look at the topic's partitions: last stable offset and end of each."""
    offsets = {("in", number): Offsets(*one) for number, one in enumerate(ends)}
    return Look(at_s, offsets, {"ledger": {("in", 0): 3}} if committed is None else committed)


def test_offsets_are_sums_over_partitions_and_throughput_is_what_was_added() -> None:
    before = look(1.0, (4, 4), (2, 6))
    assert sample(before, None, TOPICS, GROUPS, PARTITIONS).values == {
        "LSO: in": 6,
        "log end: in": 10,
        "lag, records: ledger": 7,
    }
    after = sample(look(3.0, (8, 8), (2, 7)), before, TOPICS, GROUPS, PARTITIONS)
    assert (after.at_s, after.values["records/s: in"], after.values["LSO: in"]) == (3.0, 2.5, 10)


def test_a_topic_of_which_a_leader_does_not_answer_is_left_out() -> None:
    whole, partial = look(1.0, (4, 4), (2, 6)), look(2.0, (5, 5))
    assert sample(partial, whole, TOPICS, GROUPS, PARTITIONS).values == {}
    assert "records/s: in" not in sample(look(3.0, (5, 5), (2, 6)), partial, TOPICS, GROUPS, PARTITIONS).values


def test_a_group_whose_coordinator_does_not_answer_is_left_out() -> None:
    found = sample(look(1.0, (4, 4), (2, 6), committed={}), None, TOPICS, GROUPS, PARTITIONS).values
    assert found == {"LSO: in": 6, "log end: in": 10}


def test_a_group_that_has_passed_the_end_that_was_read_before_has_no_lag() -> None:
    passed = {"ledger": {("in", 0): 5, ("in", 1): 7, ("other", 0): 100}}
    assert (
        sample(look(1.0, (4, 4), (6, 6), committed=passed), None, TOPICS, GROUPS, PARTITIONS).values[
            "lag, records: ledger"
        ]
        == 0
    )


def test_a_topic_that_only_a_group_reads_shows_as_its_lag() -> None:
    found = sample(look(1.0, (4, 4), (2, 6)), None, [], GROUPS, PARTITIONS).values
    assert found == {"lag, records: ledger": 7}
