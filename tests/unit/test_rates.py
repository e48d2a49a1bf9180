"""Rates over the client's sample window, against what the Java client's Rate gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.telemetry.instruments import SAMPLE_S, SAMPLES, Rate


def test_a_rate_begins_at_0() -> None:
    assert Rate(0.0).measure(0.0) == 0.0
    assert Rate(100.0).measure(500.0) == 0.0


def test_a_first_burst_counts_over_a_whole_sample_at_least() -> None:
    rate = Rate(0.0)
    rate.record(60, 0.0)
    assert rate.measure(0.0) == 2.0
    assert rate.measure(10.0) == pytest.approx(60 / 40)


def test_the_rate_of_a_steady_stream_is_exact() -> None:
    rate = Rate(0.0)
    for second in range(200):
        rate.record(5, float(second))
    assert rate.measure(199.0) == pytest.approx(5, rel=0.04)


def test_a_burst_is_gone_after_the_whole_span() -> None:
    rate = Rate(0.0)
    rate.record(1000, 1.0)
    assert rate.measure(SAMPLES * SAMPLE_S - 1) > 0
    assert rate.measure(SAMPLES * SAMPLE_S) == 0.0
    rate.record(30, SAMPLES * SAMPLE_S)
    assert rate.measure(SAMPLES * SAMPLE_S) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(0, 1000)), max_size=50), st.floats(0.0, 200.0))
def test_a_rate_is_between_0_and_all_events_in_one_sample(steps: list[tuple[float, int]], after_s: float) -> None:
    rate, now_s = Rate(0.0), 0.0
    for step_s, events in steps:
        now_s += step_s
        rate.record(events, now_s)
    before = rate.measure(now_s + after_s)
    assert 0.0 <= before <= sum(events for _, events in steps) / SAMPLE_S
    assert rate.measure(now_s + after_s) == before
