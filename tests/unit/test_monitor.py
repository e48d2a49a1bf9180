"""The monitor's state, derived from the cluster's responses, and its metrics."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from services.monitor import domain, service
from services.monitor.domain import OPEN_SHOWN_MAX, Partition, Picture, Target
from services.monitor.service import Monitor
from shared.events.operations import RunOutcome
from shared.http.monitor import Run
from shared.kafka.client.brokers import Brokers
from shared.telemetry.server import Health

HERE: Target = ("payments.accepted", 0)
THERE: Target = ("ledger.transfers", 4)


def test_a_last_stable_offset_is_stuck_since_it_was_first_seen_behind_the_end() -> None:
    free = domain.follow(None, 10, 10, 100.0)
    waits = domain.follow(free, 10, 12, 102.0)
    stuck = domain.follow(waits, 10, 15, 104.5)
    assert (free.stuck_s, waits.stuck_s, stuck.stuck_s) == (0.0, 0.0, 2.5)
    assert domain.follow(stuck, 10, 20, 110.0).stuck_s == 8.0
    assert domain.follow(stuck, 11, 20, 110.0) == Partition(11, 20, 110.0, 0.0)
    assert domain.follow(stuck, 20, 20, 110.0) == Partition(20, 20)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 60)).map(lambda t: (t[0], t[0] + t[1], t[2])),
        min_size=1,
        max_size=12,
    )
)
def test_stuck_seconds_are_the_time_since_the_first_look_at_this_offset_with_something_behind_it(
    looks: list[tuple[int, int, float]],
) -> None:
    now_s, known = 0.0, None
    history: list[tuple[float, int, int]] = []
    for stable, end, later_s in looks:
        now_s += later_s
        history.append((now_s, stable, end))
        known = domain.follow(known, stable, end, now_s)
        since_s = now_s
        for at_s, was_stable, was_end in reversed(history):
            if was_stable != stable or was_end <= was_stable:
                break
            since_s = at_s
        expected = now_s - since_s if end > stable else 0.0
        assert known.stuck_s == pytest.approx(expected)


def test_a_value_without_a_new_answer_stays_while_its_key_exists() -> None:
    before = {"a": 1, "b": 2, "c": 3}
    assert domain.keep(before, {"a": 9, "d": 4}, {"a", "b"}) == {"a": 9, "b": 2, "d": 4}


def test_transactions_of_a_silent_coordinator_stay() -> None:
    before = {0: {"a": 5.0}, 1: {"b": 6.0}}
    assert domain.keep_open(before, {0: {"a": 7.0}}, {0, 1}) == {0: {"a": 7.0}, 1: {"b": 6.0}}


def test_a_transaction_that_ended_is_gone_with_its_coordinators_next_response() -> None:
    assert domain.keep_open({0: {"a": 5.0}}, {0: {}}, {0, 1}) == {0: {}}


def test_transactions_of_a_removed_coordinator_are_gone_and_one_that_moved_counts_once() -> None:
    before = {0: {"a": 5.0, "b": 5.0}}
    assert domain.keep_open(before, {1: {"a": 0.5}}, {0, 1}) == {0: {"b": 5.0}, 1: {"a": 0.5}}
    assert domain.keep_open(before, {1: {"a": 0.5}}, {1}) == {1: {"a": 0.5}}


def test_only_the_oldest_transactions_above_a_minimum_age_get_a_series() -> None:
    ages = {number % 3: {f"t{number}.{i}": float(number) for i in range(2)} for number in range(30)}
    many = {0: {f"t{number:02}": float(number) for number in range(30)}}
    shown = domain.oldest(many)
    assert len(shown) == OPEN_SHOWN_MAX
    assert shown[0] == ("t29", 29.0)
    assert domain.oldest({0: {"young": 1.0, "old": 1.1}}) == [("old", 1.1)]
    assert [age for _, age in domain.oldest(ages)] == sorted((age for _, age in domain.oldest(ages)), reverse=True)


def test_a_groups_lag_is_from_its_committed_offset_or_0_to_the_last_stable_offset() -> None:
    inputs = {HERE: Partition(10, 12), THERE: Partition(7, 7)}
    assert domain.behind({HERE: 4}, inputs) == {HERE: 6, THERE: 7}
    assert domain.behind({HERE: 11, THERE: 7}, inputs) == {HERE: 0, THERE: 0}


def outcome(verdict: str, **breaks: int) -> RunOutcome:
    return RunOutcome(1, "000001-aaaaaaaa", "", "", verdict, True, breaks)


def test_the_newest_outcome_counts_in_any_order_of_reading() -> None:
    first = domain.last_run(None, 2_000, outcome("breaks", lost=2))
    assert first == Run(2_000, outcome("breaks", lost=2))
    assert domain.last_run(first, 1_000, outcome("clean")) == first
    assert domain.last_run(first, 2_000, outcome("explained")) == Run(2_000, outcome("explained"))
    assert domain.last_run(first, 3_000, outcome("clean")) == Run(3_000, outcome("clean"))


@pytest.fixture(scope="module")
def shown() -> Iterator[service.Shown]:
    """The source of the gauges, made once for each process."""
    made = service.Shown()
    yield made
    made.picture = Picture()


def series(name: str) -> dict[tuple[str, ...], float]:
    """Return the series of a metric by label values."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_before_the_first_answer_nothing_is_shown(shown: service.Shown) -> None:
    shown.picture = Picture()
    assert all(series(row.name) == {} for row in service.READINGS)


def test_every_gauge_shows_its_part_and_a_series_ends_with_its_subject(shown: service.Shown) -> None:
    shown.picture = Picture(
        asked=True,
        partitions={HERE: Partition(10, 13, 5.0, 2.5), THERE: Partition(7, 7)},
        transactions={0: {"a": 4.0}, 1: {"b": 0.1}},
        hanging={HERE: 2},
        behind={"ledger": {THERE: 3}},
        run=Run(5_000, RunOutcome(2, "cut", "", "", "breaks", True, {"lost": 1}, 2, 4_000, {"EUR": "7"})),
    )
    assert series("kafka_cluster_transactions_ongoing") == {(): 2}
    assert series("kafka_cluster_transaction_open_seconds") == {("a",): 4.0}
    assert series("kafka_cluster_transactions_hanging") == {("payments.accepted", "0"): 2, ("ledger.transfers", "4"): 0}
    assert series("kafka_cluster_partition_lso_lag")["payments.accepted", "0"] == 3
    assert series("kafka_cluster_partition_lso_stuck_seconds")["payments.accepted", "0"] == 2.5
    assert series("kafka_cluster_group_offsets_behind") == {("ledger", "ledger.transfers", "4"): 3}
    assert series("once_reconcile_last_run_timestamp_seconds") == {(): 5.0}
    assert series("once_reconcile_clean") == {(): 0}
    assert series("once_reconcile_breaks") == {("lost",): 1}
    assert series("once_reconcile_breaks_explained") == {(): 2}
    assert series("once_reconcile_oldest_break_timestamp_seconds") == {(): 4}
    assert series("once_reconcile_at_risk_minor_units") == {("EUR",): 7}
    shown.picture = Picture(asked=True, run=Run(6_000, outcome("explained")))
    assert series("kafka_cluster_transactions_ongoing") == {(): 0}
    assert series("kafka_cluster_transaction_open_seconds") == {}
    assert series("once_reconcile_breaks") == {}
    assert series("once_reconcile_clean") == {(): 1}


def test_an_interval_of_0_is_refused(shown: service.Shown) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Monitor(Brokers("127.0.0.1:1"), Health(), shown, interval_s=0)
