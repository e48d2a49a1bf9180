"""Circuit breakers: opened by consecutive failures, tested by one call at a time, closed by an answer, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.outbox.dispatch import CIRCUITS_MAX, Circuits

NAME, OTHER = "https://example.org:443", "smtp"
FAILURES_MAX, OPEN_S = 3, 10.0


@pytest.fixture
def circuits() -> Circuits:
    return Circuits(FAILURES_MAX, OPEN_S)


def fail(circuits: Circuits, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        circuits.failed(NAME, now_s)


def test_a_destination_that_never_failed_may_be_called(circuits: Circuits) -> None:
    assert circuits.wait_s(NAME, 0) == circuits.enter_s(NAME, 0) == 0
    assert circuits.open_count(0) == 0


def test_a_number_of_consecutive_failures_opens_a_circuit_and_fewer_do_not(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX - 1)
    assert circuits.enter_s(NAME, 0) == 0
    assert circuits.open_count(0) == 0
    fail(circuits, 1, now_s=2)
    assert circuits.wait_s(NAME, 2) == circuits.enter_s(NAME, 2) == OPEN_S
    assert circuits.wait_s(NAME, 11) == 1
    assert circuits.wait_s(OTHER, 2) == 0
    assert (circuits.open_count(2), circuits.open_count(12)) == (1, 0)


def test_an_answer_resets_the_count(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX - 1)
    circuits.succeeded(NAME)
    fail(circuits, FAILURES_MAX - 1)
    assert circuits.enter_s(NAME, 0) == 0


def test_the_first_caller_gets_the_trial_and_the_others_wait(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX)
    assert circuits.wait_s(NAME, OPEN_S) == 0, "wait_s() takes no trial"
    assert circuits.enter_s(NAME, OPEN_S) == 0
    assert circuits.enter_s(NAME, OPEN_S) == circuits.wait_s(NAME, OPEN_S) == OPEN_S
    assert circuits.enter_s(NAME, OPEN_S + 4) == OPEN_S - 4


def test_an_answered_trial_closes_a_circuit(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX)
    assert circuits.enter_s(NAME, OPEN_S) == 0
    circuits.succeeded(NAME)
    assert [circuits.enter_s(NAME, OPEN_S) for _ in range(3)] == [0, 0, 0]


def test_a_failed_trial_opens_a_circuit_again(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX)
    assert circuits.enter_s(NAME, OPEN_S) == 0
    fail(circuits, 1, now_s=OPEN_S + 5)
    assert circuits.wait_s(NAME, OPEN_S + 5) == OPEN_S


def test_a_trial_that_never_ends_is_followed_by_another(circuits: Circuits) -> None:
    fail(circuits, FAILURES_MAX)
    assert [circuits.enter_s(NAME, OPEN_S * times) for times in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize(("failures", "retry_after_s", "wait_s"), [(1, 4, 4), (1, 40, 40), (3, 4, 10), (3, 40, 40)])
def test_retry_after_of_a_destination_is_respected(
    circuits: Circuits, failures: int, retry_after_s: float, wait_s: float
) -> None:
    fail(circuits, failures - 1)
    circuits.failed(NAME, 0, retry_after_s)
    assert circuits.enter_s(NAME, 0) == wait_s
    fail(circuits, 1)
    assert circuits.enter_s(NAME, 0) >= wait_s, "a later failure does not shorten the wait"


def test_circuits_are_bounded_and_the_oldest_is_evicted_first(circuits: Circuits) -> None:
    for number in range(CIRCUITS_MAX + 1):
        circuits.failed(f"host-{number}", 0, retry_after_s=5)
    assert circuits.open_count(0) == CIRCUITS_MAX
    assert circuits.wait_s("host-0", 0) == 0
    assert circuits.wait_s("host-1", 0) == circuits.wait_s(f"host-{CIRCUITS_MAX}", 0) == 5
    circuits.failed("host-1", 0)
    assert circuits.wait_s("host-2", 0) == 5, "a known destination evicts no other"


@given(st.lists(st.tuples(st.sampled_from(["failed", "succeeded", "enter"]), st.floats(0, 8)), max_size=60))
def test_an_open_circuit_admits_one_call_in_each_open_time(steps: list[tuple[str, float]]) -> None:
    circuits, now_s, in_a_row, last_s = Circuits(FAILURES_MAX, OPEN_S), 0.0, 0, -OPEN_S
    for what, passed_s in steps:
        now_s += passed_s
        if what == "succeeded":
            circuits.succeeded(NAME)
            in_a_row = 0
        elif what == "failed":
            circuits.failed(NAME, now_s)
            in_a_row += 1
            last_s = now_s
        elif circuits.enter_s(NAME, now_s) == 0:
            if in_a_row >= FAILURES_MAX:
                assert now_s - last_s >= OPEN_S * (1 - 1e-9)
                last_s = now_s
        else:
            assert in_a_row >= FAILURES_MAX
