"""The invariants' lights: none is green by default, each can turn red, and each names its evidence."""

import re
from pathlib import Path

import pytest

from deploy.checkers.verdict import INVARIANTS as CHECKED
from services.balances.dashboard.evidence import REST_S, Fencing, Rest
from services.balances.dashboard.invariants import ANY, INVARIANTS, Judged, judge
from services.balances.dashboard.observed import Seen
from services.balances.dashboard.snapshot import Light, Standing
from spark.night import Kind
from tests.live import AT_MS, BOOKS, run, seen, view

ROOT = Path(__file__).parents[2]
RESTED = Rest(since_s=-REST_S)
BROKEN, OK, UNKNOWN = Standing.BROKEN, Standing.OK, Standing.UNKNOWN
BY_RUNS = [row.id for row in INVARIANTS if row.kinds]


def lights(
    now: Seen, *, rest: Rest = RESTED, fencing: Fencing | None = None, before: Judged | None = None, refused: int = 0
) -> dict[str, Light]:
    _, shown = judge(before or Judged(), now, rest, fencing or Fencing(), refused)
    return {light.id: light for light in shown}


def test_the_invariants_are_those_of_the_architecture_in_its_order() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = dict(re.findall(r"^    (I\d+)  ([a-z ]+?)  +", page, re.MULTILINE))
    shown = {row.id: row.name for row in INVARIANTS}
    assert list(shown) == [f"I{number}" for number in range(1, 13)]
    assert named.items() <= shown.items()
    assert CHECKED.keys() <= shown.keys()


def test_the_kinds_of_breaks_are_the_reconciliations() -> None:
    assert set(ANY) == {kind.value for kind in Kind}
    assert {kind for row in INVARIANTS for kind in row.kinds} == set(ANY)


def test_without_observations_nothing_is_judged() -> None:
    for now in (seen(view=None, runs_known=False), seen(view=view(debits=0, credits_=0))):
        for light in lights(now).values():
            assert light.standing is UNKNOWN, light
            assert light.at_ms is None
            assert light.detail


def test_all_hold_after_work_that_was_reconciled() -> None:
    shown = lights(seen(run=run()), fencing=Fencing(newest={"a": 1}))
    assert {light.standing for light in shown.values()} == {OK}
    assert all(light.at_ms == AT_MS for light in shown.values())


@pytest.mark.parametrize("row", INVARIANTS, ids=lambda row: row.id)
def test_each_can_turn_red(row: object) -> None:
    name = row.id  # type: ignore[attr-defined]
    off = view({**BOOKS, ("in-transit", "EUR"): 1}, debits=2)
    shown = lights(
        seen(view=off, run=run(breaks=dict.fromkeys(ANY, 1))),
        fencing=Fencing(newest={"a": 1}, breach="an old producer committed", breach_ms=AT_MS),
    )
    assert shown[name].standing is BROKEN
    assert shown[name].at_ms == AT_MS


@pytest.mark.parametrize("kind", ANY)
def test_a_kind_of_break_turns_its_invariants_red_and_is_named(kind: str) -> None:
    shown = lights(seen(run=run(breaks={kind: 2})))
    red = [name for name, light in shown.items() if light.standing is BROKEN]
    assert red == [row.id for row in INVARIANTS if kind in row.kinds]
    assert "I12" in red
    assert all(f"2 {kind}" in shown[name].detail for name in red)


def test_an_unknown_kind_turns_every_light_red_that_runs_judge() -> None:
    shown = lights(seen(run=run(breaks={"novelty": 1})))
    assert [name for name, light in shown.items() if light.standing is BROKEN] == BY_RUNS


def test_conservation_is_judged_always_and_exactly() -> None:
    huge = 2**63
    for balances, expected in (
        ({("clients", "EUR"): -huge * 4, ("fees", "EUR"): huge * 4}, OK),
        ({("clients", "EUR"): -huge * 4, ("fees", "EUR"): huge * 4 + 1}, BROKEN),
        ({("clients", "EUR"): 5, ("clients", "USD"): -5}, BROKEN),
    ):
        light = lights(seen(view=view(balances)), rest=Rest())["I1"]
        assert light.standing is expected
        assert light.at_ms == AT_MS
    assert "EUR 5 minor units, USD -5 minor units" in lights(seen(view=view(balances)))["I1"].detail


@pytest.mark.parametrize("name", ["I4", "I5"])
def test_invariants_that_need_rest_keep_their_last_verdict_while_records_move(name: str) -> None:
    off = view({**BOOKS, ("in-transit", "EUR"): 7}, debits=2)
    assert lights(seen(view=off), rest=Rest())[name].standing is UNKNOWN
    judged, _ = judge(Judged(), seen(), RESTED, Fencing(), 0)
    moving = lights(seen(5.0, view=off), rest=Rest(), before=judged)[name]
    assert (moving.standing, moving.at_ms) == (OK, AT_MS)
    assert lights(seen(9.0, view=off), before=judged)[name].standing is BROKEN


def test_a_red_light_is_not_outvoted() -> None:
    shown = lights(seen(view=view(BOOKS, debits=2), run=run()))["I4"]
    assert shown.standing is BROKEN
    assert "2 debit legs, 1 credit legs" in shown.detail
    assert lights(seen(run=run(breaks={"missing": 1})))["I4"].standing is BROKEN


def test_fencing_shows_how_often_it_refused() -> None:
    assert "3 refused" in lights(seen(), fencing=Fencing(newest={"a": 1}), refused=3)["I10"].detail
