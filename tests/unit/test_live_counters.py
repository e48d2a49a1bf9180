"""Counters of several processes, added up over their restarts."""

from hypothesis import given
from hypothesis import strategies as st

from services.balances.dashboard.observed import Instance
from services.balances.dashboard.stages import WINDOW_S, Count, Tally, advance
from shared.telemetry import catalogue
from tests.live import instance

TAKEN = Count("taken", "ingest", catalogue.RECORDS_CONSUMED, (("topic", "payments.raw"),))
LETTERS = Count("letters", "", catalogue.DEAD_LETTERS, by="reason")


def ingest(value: float, *, port: int = 1, started_s: float = 1.0) -> Instance:
    series = {catalogue.RECORDS_CONSUMED: {("payments.raw",): value, ("other",): 1000.0}}
    return instance("ingest", series, port=port, started_s=started_s)


def after(*rounds: list[Instance], step_s: float = 0.5) -> Tally:
    tally = Tally()
    for number, instances in enumerate(rounds):
        tally = advance(tally, [TAKEN, LETTERS], instances, number * step_s)
    return tally


def test_instances_are_added_up_and_other_series_and_services_are_not() -> None:
    tally = after(
        [ingest(3), ingest(4, port=2), instance("ledger", {catalogue.RECORDS_CONSUMED: {("payments.raw",): 9.0}})]
    )
    assert tally.get("taken").total == 7
    assert not tally.get("taken").at_least


def test_a_rate_is_over_the_window_and_not_known_from_one_answer() -> None:
    assert after([ingest(100)]).get("taken").per_s is None
    assert after([ingest(100)], [ingest(110)]).get("taken").per_s == 20
    rounds = [[ingest(100.0 + 10 * number)] for number in range(20)]
    counted = after(*rounds).get("taken")
    assert counted.per_s == 20
    assert counted.points[0][0] >= counted.points[-1][0] - WINDOW_S


def test_a_silent_service_keeps_its_total() -> None:
    silent = [instance("ingest", None, port=1)]
    tally = after([ingest(100)], [ingest(150)], *[silent] * 10)
    assert tally.get("taken").total == 150
    assert tally.get("taken").per_s == 0


def test_a_restarted_process_is_added_and_makes_the_total_a_lower_bound() -> None:
    tally = after([ingest(100)], [ingest(5, started_s=2)], [ingest(8, started_s=2)])
    assert tally.get("taken").total == 108
    assert tally.get("taken").at_least
    assert tally.restarts == {"ingest": 1}


def test_a_restart_is_detected_by_the_start_time_despite_a_higher_count() -> None:
    assert after([ingest(100)], [ingest(120, started_s=2)]).get("taken").total == 220


def test_a_restart_without_a_start_time_is_detected_by_a_lower_count() -> None:
    assert after([ingest(100, started_s=0)], [ingest(20, started_s=0)]).get("taken").total == 120


def test_an_instance_that_joins_does_not_count_in_the_rate() -> None:
    tally = after([ingest(100)], [ingest(100), ingest(90_000, port=2)])
    assert tally.get("taken").total == 90_100
    assert tally.get("taken").per_s == 0


def test_a_count_is_split_by_label_values() -> None:
    series = {catalogue.DEAD_LETTERS: {("same_account",): 2.0, ("currency_unknown",): 0.0}}
    tally = after([instance("ingest", series)])
    assert {by: one.total for by, one in tally.split("letters").items()} == {"same_account": 2, "currency_unknown": 0}


def test_a_series_that_a_new_process_does_not_export_begins_at_0_again() -> None:
    def letters(series: dict[tuple[str, ...], float], started_s: float) -> list[Instance]:
        return [instance("ingest", {catalogue.DEAD_LETTERS: series}, started_s=started_s)]

    tally = after(letters({("a",): 7.0}, 1), letters({}, 2), letters({("a",): 7.0}, 2))
    assert tally.get("letters", "a").total == 14
    assert tally.get("letters", "a").at_least


@given(
    lives=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=5),
    step_s=st.floats(0.1, 2.0),
)
def test_the_total_is_the_sum_over_all_processes_and_never_falls(lives: list[list[int]], step_s: float) -> None:
    tally, expected, totals = Tally(), 0, []
    at_s = 0.0
    for number, gains in enumerate(lives):
        value = 0
        for gain in gains:
            value += gain
            expected += gain
            at_s += step_s
            tally = advance(tally, [TAKEN], [ingest(value, started_s=number + 1.0)], at_s)
            totals.append(tally.get("taken").total)
    assert totals[-1] == expected
    assert totals == sorted(totals)
    per_s = tally.get("taken").per_s
    assert per_s is None or per_s >= 0
