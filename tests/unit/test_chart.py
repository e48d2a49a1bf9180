"""The chart of volume: an axis of time for any amount of data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.page import BARS_MAX, BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart
from spark.report import iso

HOUR_MS = 3_600_000


def volume(counts: dict[int, int]) -> dict[str, int]:
    return {iso(hour * HOUR_MS): count for hour, count in counts.items()}


def test_without_volume_there_is_no_chart() -> None:
    assert chart({}) is None
    assert chart(volume({5: 0})) is None


def test_an_hour_without_volume_is_a_gap() -> None:
    drawn = chart(volume({0: 10, 2: 20, 3: 5}))
    assert drawn is not None
    first, second, third = drawn.bars
    assert second.x - first.x == pytest.approx(2 * (third.x - second.x))
    assert second.height == pytest.approx(2 * first.height)
    assert [bar.text for bar in drawn.bars] == ["1970-01-01 00:00: 10", "1970-01-01 02:00: 20", "1970-01-01 03:00: 5"]
    assert drawn.text == (
        "35 between 1970-01-01 00:00 and 1970-01-01 03:00 UTC, one bar per hour; the most, 20, at 1970-01-01 02:00."
    )


@pytest.mark.parametrize(
    ("hours", "per"),
    [(1, "hour"), (BARS_MAX, "hour"), (BARS_MAX + 24, "day"), (24 * 400, "7 days"), (10**6, "364 days")],
)
def test_many_hours_are_drawn_as_days_or_more(hours: int, per: str) -> None:
    drawn = chart(volume({0: 1, hours - 1: 1}))
    assert drawn is not None
    assert drawn.per == per


@given(st.dictionaries(st.integers(0, 20_000), st.integers(0, 10**12), max_size=60))
def test_bars_are_within_the_axes_and_show_everything(counts: dict[int, int]) -> None:
    drawn = chart(volume(counts))
    if drawn is None:
        assert sum(counts.values()) == 0
        return
    assert sum(int(bar.text.rpartition(" ")[2].replace(",", "")) for bar in drawn.bars) == sum(counts.values())
    assert len(drawn.bars) <= BARS_MAX
    for bar in drawn.bars:
        assert LEFT <= bar.x <= bar.x + bar.width <= WIDTH - RIGHT + 0.01
        assert TOP - 0.01 <= bar.y <= bar.y + bar.height <= HEIGHT - BOTTOM + 0.02
    assert len(drawn.times) <= 6
    assert 2 <= len(drawn.counts) <= 6
