"""The age that the view reports."""

from services.balances.projection.domain import Position
from services.balances.projection.lag import KNOWN_MS, Behind
from services.balances.projection.progress import PartitionFreshness

NOW_MS = 1_700_000_000_000
SET_BACK_MS = NOW_MS - 3_600_000


def at(behind: Behind, position: Position, now_ms: int, wall_ms: int | None = None) -> PartitionFreshness:
    """The partition at a time of both clocks, or of the monotonic one where the wall clock has another."""
    [found] = behind.freshness({0: position}, now_ms, now_ms if wall_ms is None else wall_ms)
    return found


def seconds(behind: Behind, position: Position, now_ms: int) -> float | None:
    return at(behind, position, now_ms).seconds_behind


def test_the_age_is_unknown_before_the_first_answer_of_the_brokers() -> None:
    assert at(Behind(), Position(7, NOW_MS), NOW_MS) == PartitionFreshness(0, 7, None, None, None)


def test_a_partition_without_lag_is_as_old_as_the_brokers_word_even_if_idle() -> None:
    behind = Behind()
    idle = Position(9, NOW_MS - 3_600_000)
    behind.look({0: 9}, {0: idle}, NOW_MS)

    assert at(behind, idle, NOW_MS) == PartitionFreshness(0, 9, 9, 0.0, 0.0)
    assert at(behind, idle, NOW_MS + 3200) == PartitionFreshness(0, 9, 9, 3.2, 3.2)


def test_a_wall_clock_that_is_set_back_hides_no_age() -> None:
    behind = Behind()
    complete = Position(9, SET_BACK_MS)
    behind.look({0: 9}, {0: complete}, NOW_MS)

    assert at(behind, complete, NOW_MS + 3200, SET_BACK_MS) == PartitionFreshness(0, 9, 9, 3.2, 3.2)
    assert at(behind, complete, NOW_MS + KNOWN_MS + 1, SET_BACK_MS) == PartitionFreshness(0, 9, None, None, None)
    behind.look({0: 11}, {0: complete}, NOW_MS + 1000)
    assert at(behind, complete, NOW_MS + 3200, SET_BACK_MS) == PartitionFreshness(0, 9, 11, 2.2, 2.2)


def test_a_lagging_partition_is_as_old_as_its_last_record() -> None:
    behind = Behind()
    behind.look({0: 100}, {0: Position(9, NOW_MS - 60_000)}, NOW_MS)

    assert seconds(behind, Position(9, NOW_MS - 60_000), NOW_MS) == 60
    assert seconds(behind, Position(50, NOW_MS - 20_000), NOW_MS + 1000) == 21
    assert seconds(behind, Position(100, NOW_MS - 10_000), NOW_MS + 1000) == 1


def test_a_new_record_after_an_idle_hour_is_not_an_hour_old() -> None:
    behind = Behind()
    quiet = Position(9, NOW_MS - 3_600_000)
    behind.look({0: 9}, {0: quiet}, NOW_MS - 500)
    behind.look({0: 11}, {0: quiet}, NOW_MS + 500)

    assert seconds(behind, quiet, NOW_MS + 600) == 1.1


def test_a_view_that_is_rebuilt_is_as_old_as_its_last_record_until_it_has_everything_again() -> None:
    behind = Behind()
    behind.look({0: 100}, {0: Position(100, NOW_MS - 10_000)}, NOW_MS)
    behind.look({0: 102}, {0: Position(40, NOW_MS - 3_600_000)}, NOW_MS + 1000)

    assert seconds(behind, Position(40, NOW_MS - 3_600_000), NOW_MS + 1000) == 3601
    assert seconds(behind, Position(100, NOW_MS - 10_000), NOW_MS + 1000) == 1


def test_an_answer_of_the_brokers_expires() -> None:
    behind = Behind()
    behind.look({0: 9}, {0: Position(9, NOW_MS)}, NOW_MS)

    assert seconds(behind, Position(9, NOW_MS), NOW_MS + KNOWN_MS) == KNOWN_MS / 1000
    assert at(behind, Position(9, NOW_MS), NOW_MS + KNOWN_MS + 1) == PartitionFreshness(0, 9, None, None, None)
