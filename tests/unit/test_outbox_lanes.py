"""Lanes: names, bounds of calls and claims, circuits that failures open and a trial call tests, pauses asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.outbox.lanes import (
    FULL,
    LANES_MAX,
    QUEUED_S,
    QUICK_S,
    SILENT_S,
    WORK_S,
    Lane,
    Lanes,
    endpoint_of,
    lane_name,
    origin_of,
)

CALLS_MAX, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S = 12, 8, 3, 10.0
NAME = "https://example.org:443/hook"


@pytest.fixture
def lanes() -> Lanes:
    return Lanes(CALLS_MAX, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S)


def fail(lanes: Lanes, lane: Lane, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        lanes.failed(lane, now_s)


def begun(lanes: Lanes, lane: Lane, now_s: float = 0.0) -> int:
    """Begin as many calls as may, and return their number."""
    count = 0
    while lanes.may_begin(lane):
        lanes.begin(lane, now_s)
        count += 1
    return count


def admitted(lanes: Lanes, lane: Lane, now_s: float = 0.0) -> int:
    count = 0
    while lanes.admit(lane, now_s).lane is lane:
        count += 1
    return count


@pytest.mark.parametrize(
    ("destination", "origin", "endpoint"),
    [
        ("https://Example.org", "https://example.org:443", "https://example.org:443/"),
        ("http://example.org/a", "http://example.org:80", "http://example.org:80/a"),
        ("https://h:8443/a/b", "https://h:8443", "https://h:8443/a/b"),
        ("http://[::1]:80/", "http://[::1]:80", "http://[::1]:80/"),
        ("http://h:0/", "http://h:0", "http://h:0/"),
    ],
)
def test_the_parts_of_a_url(destination: str, origin: str, endpoint: str) -> None:
    assert (origin_of(destination), endpoint_of(destination)) == (origin, endpoint)
    assert lane_name(destination) == lane_name(destination + "?tenant=7") == endpoint


@pytest.mark.parametrize(
    "destination", ["https://", "ftp://h", "h/hook", "https://h:65536", "https://h:x", "http://[h"]
)
def test_invalid_urls(destination: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        origin_of(destination)
    assert lane_name(destination) == destination


def test_the_mail_server_has_one_lane_and_each_file_its_own() -> None:
    assert {lane_name(f"mailto:{name}@example.org") for name in ("alice", "bob")} == {"smtp"}
    assert lane_name("file:receipts") == "file:receipts"


def test_a_lane_leaves_slots_for_others_until_there_are_none(lanes: Lanes) -> None:
    assert begun(lanes, lanes.lane("a")) == 6, "it has as many as it leaves"
    assert begun(lanes, lanes.lane("b")) == 3
    assert begun(lanes, lanes.lane("c")) == 2
    assert begun(lanes, lanes.lane("d")) == 1
    assert begun(lanes, lanes.lane("e")) == 0


def test_a_lane_has_its_own_bound_and_its_sinks() -> None:
    lanes = Lanes(1000, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S)
    assert begun(lanes, lanes.lane("a")) == LANE_CALLS_MAX
    assert begun(lanes, lanes.lane("smtp://mail:25", 2)) == 2
    assert begun(lanes, lanes.lane("file:receipts", 100)) == LANE_CALLS_MAX


def test_an_only_slot_can_be_used() -> None:
    lanes = Lanes(1, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S)
    lane = lanes.lane(NAME)
    number = lanes.begin(lane, 0)
    assert not lanes.may_begin(lane)
    lanes.end(lane, number)
    assert lanes.may_begin(lane)


def test_a_lane_has_room_for_the_calls_that_it_finishes_soon(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    assert admitted(lanes, lane) == LANE_CALLS_MAX, "how long its calls take is not known"
    assert lanes.admit(lane, 0).wait_s == FULL
    lane.claimed = 0
    lanes.answered(lane, 0.005)
    assert admitted(lanes, lane) == LANE_CALLS_MAX * WORK_S / 0.005
    number = lanes.begin(lane, 1.0)
    assert admitted(lanes, lane, 1.01 + WORK_S) == 0, "a call is late, so the others may be as well"
    lane.claimed = LANE_CALLS_MAX - 1
    assert admitted(lanes, lane, 1.01 + WORK_S) == 1
    lanes.end(lane, number)
    lane.claimed = 0
    for _ in range(100):
        lanes.answered(lane, 4.9)
    assert admitted(lanes, lane) == LANE_CALLS_MAX


def test_a_lane_is_quick_while_its_calls_are_and_none_is_late(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    assert lane.is_quick(0)
    lanes.answered(lane, QUICK_S / 2)
    number = lanes.begin(lane, 1.0)
    assert lane.is_quick(1.0 + WORK_S * 0.9)
    assert not lane.is_quick(1.01 + WORK_S)
    lanes.end(lane, number)
    assert lane.is_quick(9)
    fail(lanes, lane, 1)
    assert not lane.is_quick(9)
    for _ in range(20):
        lanes.answered(lane, 1.0)
    assert not lane.is_quick(9)


def test_a_lane_whose_calls_wait_for_each_other_is_quick(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    for number in range(1000):
        lanes.answered(lane, QUICK_S * 2 if number % 200 else QUICK_S / 2)
        assert lane.is_quick(9)
    for _ in range(1000):
        lanes.answered(lane, QUICK_S * 2)
    assert not lane.is_quick(9)
    lanes.answered(lane, QUICK_S)
    assert lane.is_quick(9)


def test_a_lane_that_is_slow_in_the_mean_is_not_quick(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    for number in range(100):
        lanes.answered(lane, QUEUED_S * 2 if number % 4 else QUICK_S)
    assert lane.quickest_s <= QUICK_S * 1.1
    assert not lane.is_quick(9)


def test_failures_in_a_row_open_a_lane_and_fewer_do_not(lanes: Lanes) -> None:
    lane, other = lanes.lane(NAME), lanes.lane(NAME + "/other")
    fail(lanes, lane, FAILURES_MAX - 1)
    assert lanes.enter_s(lane, 0) == 0
    assert lanes.open_count(0) == 0
    fail(lanes, lane, 1, now_s=2)
    assert lanes.wait_s(lane, 2) == lanes.enter_s(lane, 2) == lanes.admit(lane, 2).wait_s == OPEN_S
    assert lanes.wait_s(lane, 11) == 1
    assert lanes.wait_s(other, 2) == 0
    assert (lanes.open_count(2), lanes.open_count(12)) == (1, 1), "it is open until its trial call is accepted"
    assert lanes.open_count(3 + SILENT_S) == 0


def test_an_answer_resets_the_count(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    fail(lanes, lane, FAILURES_MAX - 1)
    lanes.answered(lane, 1)
    fail(lanes, lane, FAILURES_MAX - 1)
    assert lanes.enter_s(lane, 0) == 0


def test_one_effect_is_claimed_and_tried_after_the_open_time(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    fail(lanes, lane, FAILURES_MAX)
    assert admitted(lanes, lane, OPEN_S) == 1
    assert lanes.wait_s(lane, OPEN_S) == 0, "wait_s() takes no trial"
    assert lanes.enter_s(lane, OPEN_S) == 0
    assert lanes.enter_s(lane, OPEN_S) == lanes.wait_s(lane, OPEN_S) == OPEN_S
    lane.claimed = 0
    assert admitted(lanes, lane, OPEN_S + 1) == 0
    lanes.answered(lane, 1)
    assert admitted(lanes, lane, OPEN_S + 1) == LANE_CALLS_MAX


def test_a_failed_trial_opens_a_lane_again(lanes: Lanes) -> None:
    lane = lanes.lane(NAME)
    fail(lanes, lane, FAILURES_MAX)
    assert lanes.enter_s(lane, OPEN_S) == 0
    fail(lanes, lane, 1, now_s=OPEN_S + 5)
    assert lanes.wait_s(lane, OPEN_S + 5) == OPEN_S


@pytest.mark.parametrize(("failures", "retry_after_s", "wait_s"), [(1, 4, 4), (1, 40, 40), (3, 4, 10), (3, 40, 40)])
def test_a_pause_that_is_asked_for_is_kept(lanes: Lanes, failures: int, retry_after_s: float, wait_s: float) -> None:
    lane = lanes.lane(NAME)
    fail(lanes, lane, failures - 1)
    lanes.failed(lane, 0, retry_after_s)
    assert lanes.admit(lane, 0).wait_s == wait_s
    fail(lanes, lane, 1)
    assert lanes.wait_s(lane, 0) >= wait_s, "a later failure does not shorten the wait"


def test_lanes_are_bounded_and_idle_ones_are_forgotten_first(lanes: Lanes) -> None:
    for number in range(LANES_MAX):
        lanes.failed(lanes.lane(f"host-{number}"), 0, retry_after_s=5)
    lanes.answered(lanes.lane("host-7"), 1)
    lanes.lane("new")
    assert lanes.open_count(0) == LANES_MAX - 1
    lanes.lane("host-1").claimed = 1
    lanes.lane("newer")
    lanes.lane("host-0")
    assert lanes.wait_s(lanes.lane("host-1"), 0) == 5
    assert lanes.wait_s(lanes.lane("host-9"), 0) == 5
    assert lanes.wait_s(lanes.lane("host-0"), 0) in {0, 5}
    assert len(lanes._lanes) == LANES_MAX


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 99)), max_size=120))
def test_slots_are_never_exceeded_and_a_lane_without_calls_is_not_starved(steps: list[tuple[bool, int, int]]) -> None:
    lanes, calls = Lanes(CALLS_MAX, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S), list[tuple[Lane, int]]()
    for begin, place, which in steps:
        lane = lanes.lane(f"lane-{place}")
        if begin and lanes.may_begin(lane):
            calls.append((lane, lanes.begin(lane, 0)))
        elif calls:
            lanes.end(*calls.pop(which % len(calls)))
        assert len(calls) <= CALLS_MAX
        idle = lanes.lane("idle")
        if len(calls) < CALLS_MAX:
            assert lanes.may_begin(idle)
        assert all(lane.calls <= CALLS_MAX - len(calls) + 1 or not lanes.may_begin(lane) for lane, _ in calls)


@given(st.lists(st.tuples(st.sampled_from(["failed", "answered", "enter"]), st.floats(0, 8)), max_size=60))
def test_an_open_lane_admits_one_call_in_each_open_time(steps: list[tuple[str, float]]) -> None:
    lanes, now_s, in_a_row, last_s = Lanes(CALLS_MAX, LANE_CALLS_MAX, FAILURES_MAX, OPEN_S), 0.0, 0, -OPEN_S
    lane = lanes.lane(NAME)
    for what, passed_s in steps:
        now_s += passed_s
        if what == "answered":
            lanes.answered(lane, 0.1)
            in_a_row = 0
        elif what == "failed":
            lanes.failed(lane, now_s)
            in_a_row += 1
            last_s = now_s
        elif lanes.enter_s(lane, now_s) == 0:
            if in_a_row >= FAILURES_MAX:
                assert now_s - last_s >= OPEN_S * (1 - 1e-9)
                last_s = now_s
        else:
            assert in_a_row >= FAILURES_MAX
