"""Waiting effects: those due next, their order, and the effect of transactions and restarts."""

from typing import Any

import pytest

from services.outbox.waiting import WaitingStore
from shared.eos.store import Change
from shared.events.effects import WAITING_PREFIX, Waiting, encode_waiting
from tests.sinks.effects import effect
from tests.stores import commit, compacted, restore


def waits(number: int, not_before_ms: int = 100, **changes: Any) -> Waiting:
    """Return an effect without an order. Its number is its place in effects.requests."""
    destination = changes.pop("destination", "file:receipts")
    return Waiting(
        effect(number, destination, **changes),
        f"effects.requests:0:{number}",
        "payments.raw:0:0",
        1,
        0,
        not_before_ms,
        number,
    )


def ordered(number: int, not_before_ms: int = 100, **changes: Any) -> Waiting:
    """Return an ordered effect."""
    return waits(number, not_before_ms, ordered=True, **changes)


def put(store: WaitingStore, *waiting: Waiting) -> None:
    for each in waiting:
        store.put(each.request.effect_id, each)


def store_of(*waiting: Waiting) -> WaitingStore:
    """Return a store in which these are committed."""
    store = WaitingStore()
    put(store, *waiting)
    store.commit()
    return store


def test_effects_are_due_in_the_order_of_their_times_then_of_their_requests() -> None:
    late, early, middle, same = waits(1, 30), waits(2, 10), waits(4, 20), waits(3, 20)
    store = store_of(late, early, middle, same)
    assert store.due(9, 10) == []
    assert store.due(20, 10) == [early, same, middle]
    assert store.due(30, 10) == [late]


def test_no_more_effects_are_taken_than_requested_and_none_is_lost() -> None:
    all_of_them = [waits(number) for number in range(5)]
    store = store_of(*all_of_them)
    assert store.due(100, 2) == all_of_them[:2]
    assert store.due(100, 2) == all_of_them[2:4]
    assert store.due(100, 2) == all_of_them[4:]
    assert store.due(100, 2) == []
    store.rollback()
    assert store.due(100, 10) == all_of_them


def test_an_effect_is_taken_once_in_a_transaction() -> None:
    again = waits(1)
    store = store_of(again)
    assert store.due(100, 1) == [again]
    put(store, again)
    store.commit()
    assert store.due(100, 1) == [again]
    assert store.due(100, 1) == []


def test_a_postponed_effect_is_due_at_its_new_time_only() -> None:
    store = store_of(waits(1, 10))
    [taken] = store.due(10, 5)
    put(store, waits(1, 50))
    store.commit()
    assert store.due(49, 5) == []
    assert store.due(50, 5) == [waits(1, 50)]
    assert taken.not_before_ms == 10


def test_an_effect_brought_forward_is_due_at_its_new_time_and_once() -> None:
    store = store_of(waits(1, 50))
    put(store, waits(1, 10))
    store.commit()
    assert store.due(10, 5) == [waits(1, 10)]
    assert store.due(60, 5) == []


def test_only_the_first_of_a_chain_is_due_even_if_others_are_earlier() -> None:
    first, second, third = ordered(1, 50), ordered(2, 10), ordered(3, 5)
    store = store_of(third, first, second)
    assert store.due(49, 5) == []
    assert store.due(50, 5) == [first]
    store.remove(first.request.effect_id)
    store.commit()
    assert store.due(50, 5) == [second]
    store.remove(second.request.effect_id)
    store.commit()
    assert store.due(50, 5) == [third]


def test_a_postponed_first_effect_holds_up_its_chain() -> None:
    first, second = ordered(1, 10), ordered(2, 10)
    store = store_of(first, second)
    assert store.due(10, 5) == [first]
    put(store, ordered(1, 40))
    store.commit()
    assert store.due(39, 5) == []
    assert store.due(40, 5) == [ordered(1, 40)]


@pytest.mark.parametrize("changes", [{"account": "576"}, {"destination": "file:others"}, {"ordered": False}])
def test_other_accounts_other_destinations_and_unordered_ones_do_not_wait(changes: dict[str, Any]) -> None:
    free = waits(2, 10, **{"ordered": True, **changes})
    store = store_of(ordered(1, 50), free)
    assert store.due(10, 5) == [free]
    assert store.behind(free.request) == (None if not free.request.ordered else free)


def test_an_ordered_effect_waits_behind_the_last_committed_one_of_its_chain() -> None:
    store = store_of(ordered(1), ordered(3))
    put(store, ordered(5))
    assert store.behind(ordered(9).request) == ordered(3)
    store.commit()
    assert store.behind(ordered(9).request) == ordered(5)
    assert store.behind(waits(9).request) is None
    assert store.behind(ordered(9, account="576").request) is None


def test_changes_are_visible_in_their_transaction_and_undone_with_it() -> None:
    kept, gone, new = waits(1), waits(2), waits(3)
    store = store_of(kept, gone)
    put(store, new)
    store.remove(gone.request.effect_id)
    assert store.get(new.request.effect_id) == new
    assert store.get(gone.request.effect_id) is None
    assert len(store) == 2
    store.rollback()
    assert dict(store.items()) == {each.request.effect_id: each for each in (kept, gone)}
    assert store.get(new.request.effect_id) is None
    assert store.due(100, 5) == [kept, gone]


def test_an_effect_added_and_removed_in_one_transaction_is_not_a_change() -> None:
    store = WaitingStore()
    put(store, waits(1))
    store.remove(waits(1).request.effect_id)
    store.remove(waits(2).request.effect_id)
    assert list(store.changes()) == []
    store.commit()
    assert len(store) == 0


def test_a_change_is_a_record_and_an_end_is_a_tombstone() -> None:
    store, changelog = store_of(waits(1)), list[Change]()
    store.remove(waits(1).request.effect_id)
    put(store, waits(2))
    commit(store, changelog)
    assert dict(changelog) == {
        WAITING_PREFIX + b"%032x" % 1: None,
        WAITING_PREFIX + b"%032x" % 2: encode_waiting(waits(2)),
    }


@pytest.mark.parametrize("clean_until", [0, 3, 9])
def test_a_restart_restores_waiting_effects(clean_until: int) -> None:
    store, changelog = WaitingStore(), list[Change]()
    put(store, ordered(1, 50), ordered(2, 10), waits(3, 10))
    commit(store, changelog)
    put(store, ordered(1, 20))
    store.remove(waits(3).request.effect_id)
    commit(store, changelog)
    restored = WaitingStore()
    restore(restored, compacted(changelog, clean_until))
    assert dict(restored.items()) == dict(store.items())
    for each in (store, restored):
        assert each.due(19, 5) == []
        assert each.due(20, 5) == [ordered(1, 20)]
