"""The rate limit against an exact token bucket."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.access import SECOND_NS, RateLimiter

exact_rates = st.tuples(st.integers(-3, 9), st.integers(0, 4)).map(lambda power: 2.0 ** power[0] * 5.0 ** power[1])
"""Rates with whole nanoseconds between two tokens."""
rates = st.floats(0.01, 10_000)
bursts = st.integers(1, 40)
times = st.integers(0, 10**16)
gaps = st.lists(st.integers(0, 3 * SECOND_NS) | st.integers(0, 4), max_size=200)


class Bucket:
    """A token bucket as usually defined."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self.rate, self.burst = Fraction(rate_per_s) / SECOND_NS, burst
        self.tokens, self.at_ns = Fraction(burst), 0

    def take(self, now_ns: int) -> Fraction:
        """Take a token; 0, or the time until there is one."""
        self.tokens = min(Fraction(self.burst), self.tokens + (now_ns - self.at_ns) * self.rate)
        self.at_ns = now_ns
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return Fraction(0)


@given(exact_rates, bursts, gaps)
def test_it_decides_as_a_bucket_of_tokens_does(rate: float, burst: int, waits: list[int]) -> None:
    limiter, bucket, now_ns = RateLimiter(rate, burst), Bucket(rate, burst), 0
    for wait_ns in waits:
        now_ns += wait_ns
        assert limiter.take("shop", now_ns) == bucket.take(now_ns)


@given(rates, bursts, st.lists(st.integers(0, 5 * SECOND_NS), min_size=1, max_size=100), times)
def test_no_span_lets_in_more_than_burst_and_rate(rate: float, burst: int, waits: list[int], now_ns: int) -> None:
    limiter, taken = RateLimiter(rate, burst), list[int]()
    for wait_ns in waits:
        now_ns += wait_ns
        if limiter.take("shop", now_ns) == 0:
            taken.append(now_ns)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - taken[first]) * rate / SECOND_NS
            assert last - first + 1 <= allowed * (1 + 1e-5)  # 10,000 a second are 100,000 ns apart, rounded to whole


@given(rates, bursts, times, st.integers(1, 100))
def test_a_client_that_waits_as_advised_is_let_in(rate: float, burst: int, now_ns: int, more: int) -> None:
    limiter = RateLimiter(rate, burst)
    waits = [limiter.take("shop", now_ns) for _ in range(burst + more)]
    assert waits[:burst] == [0] * burst
    assert all(0 < wait_ns <= math.ceil(SECOND_NS / rate) for wait_ns in waits[burst:])
    assert limiter.take("shop", now_ns + waits[-1] - 1) == 1
    assert limiter.take("shop", now_ns + waits[-1]) == 0


@given(rates, times, st.integers(1, 300))
def test_a_client_within_the_rate_is_never_refused(rate: float, now_ns: int, count: int) -> None:
    limiter = RateLimiter(rate, 1)
    apart_ns = math.ceil(SECOND_NS / rate)
    assert all(limiter.take("shop", now_ns + number * apart_ns) == 0 for number in range(count))


@given(bursts, st.lists(st.sampled_from("abc"), max_size=120), st.sets(st.sampled_from("abcd")))
def test_clients_do_not_share_and_inactive_ones_are_removed(burst: int, asking: list[str], remain: set[str]) -> None:
    limiter = RateLimiter(1.0, burst)
    let_in = [client for client in asking if limiter.take(client, 0) == 0]
    assert all(let_in.count(client) == min(burst, asking.count(client)) for client in "abc")
    limiter.keep(remain)
    assert len(limiter) == len(remain & set(asking))


@pytest.mark.parametrize(("rate", "at_once"), [(0.1, 1), (1.0, 1), (2.5, 3), (100.0, 100)])
def test_the_default_burst_is_one_seconds_requests(rate: float, at_once: int) -> None:
    limiter = RateLimiter(rate)
    assert [limiter.take("shop", 5) for _ in range(at_once + 1)].count(0) == at_once


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1.0, -1)])
def test_an_invalid_limit_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        RateLimiter(rate, burst)
