"""Waiting effects: those due next, their order, and the effect of transactions and restarts."""

from typing import Any

import pytest

from services.outbox.lanes import FULL, NO_CALL, Admission
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


def due(store: WaitingStore, now_ms: int, limit: int) -> list[Waiting]:
    """What is due where every lane may be called."""
    return [waiting for waiting, _ in store.due(now_ms, limit, lambda *_: NO_CALL)]


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
    assert due(store, 9, 10) == []
    assert due(store, 20, 10) == [early, same, middle]
    assert due(store, 30, 10) == [late]


def test_no_more_effects_are_taken_than_requested_and_none_is_lost() -> None:
    all_of_them = [waits(number) for number in range(5)]
    store = store_of(*all_of_them)
    assert due(store, 100, 2) == all_of_them[:2]
    assert due(store, 100, 2) == all_of_them[2:4]
    assert due(store, 100, 2) == all_of_them[4:]
    assert due(store, 100, 2) == []
    for waiting in all_of_them:
        store.give_back(waiting.request.effect_id)
    assert due(store, 100, 10) == all_of_them


def test_an_effect_is_taken_once_in_a_transaction() -> None:
    again = waits(1)
    store = store_of(again)
    assert due(store, 100, 1) == [again]
    put(store, again)
    store.commit()
    assert due(store, 100, 1) == [again]
    assert due(store, 100, 1) == []


def test_a_postponed_effect_is_due_at_its_new_time_only() -> None:
    store = store_of(waits(1, 10))
    [taken] = due(store, 10, 5)
    put(store, waits(1, 50))
    store.commit()
    assert due(store, 49, 5) == []
    assert due(store, 50, 5) == [waits(1, 50)]
    assert taken.not_before_ms == 10


def test_an_effect_brought_forward_is_due_at_its_new_time_and_once() -> None:
    store = store_of(waits(1, 50))
    put(store, waits(1, 10))
    store.commit()
    assert due(store, 10, 5) == [waits(1, 10)]
    assert due(store, 60, 5) == []


def test_only_the_first_of_a_chain_is_due_even_if_others_are_earlier() -> None:
    first, second, third = ordered(1, 50), ordered(2, 10), ordered(3, 5)
    store = store_of(third, first, second)
    assert due(store, 49, 5) == []
    assert due(store, 50, 5) == [first]
    store.remove(first.request.effect_id)
    store.commit()
    assert due(store, 50, 5) == [second]
    store.remove(second.request.effect_id)
    store.commit()
    assert due(store, 50, 5) == [third]


def test_a_postponed_first_effect_holds_up_its_chain() -> None:
    first, second = ordered(1, 10), ordered(2, 10)
    store = store_of(first, second)
    assert due(store, 10, 5) == [first]
    put(store, ordered(1, 40))
    store.commit()
    assert due(store, 39, 5) == []
    assert due(store, 40, 5) == [ordered(1, 40)]


@pytest.mark.parametrize("changes", [{"account": "576"}, {"destination": "file:others"}, {"ordered": False}])
def test_other_accounts_other_destinations_and_unordered_ones_do_not_wait(changes: dict[str, Any]) -> None:
    free = waits(2, 10, **{"ordered": True, **changes})
    store = store_of(ordered(1, 50), free)
    assert due(store, 10, 5) == [free]


def test_a_chain_is_known_while_a_committed_effect_of_it_waits() -> None:
    store = store_of(ordered(1))
    put(store, ordered(5, account="576"))
    assert store.has_chain(("2378", "file:receipts"))
    assert not store.has_chain(("576", "file:receipts"))
    store.commit()
    assert store.has_chain(("576", "file:receipts"))
    store.remove(ordered(1).request.effect_id)
    store.commit()
    assert not store.has_chain(("2378", "file:receipts"))


def test_lanes_take_turns_and_one_that_may_not_be_called_holds_up_no_other() -> None:
    many = [waits(number, destination="file:many") for number in range(4)]
    few = [waits(number, destination="file:few") for number in range(4, 6)]
    store = store_of(*many, *few)
    assert due(store, 100, 3) == [few[0], many[0], few[1]]
    store = store_of(*many, *few)
    open_s = {"file:many": 2.0, "file:few": 0.0}

    def admit(lane: str, _: Waiting) -> Admission:
        return Admission(None, open_s[lane])

    assert [waiting for waiting, _ in store.due(1000, 9, admit)] == few
    open_s["file:many"] = 0.0
    assert store.due(3000, 9, admit) == [], "it is not asked before its time"
    assert [waiting for waiting, _ in store.due(3001, 9, admit)] == many


def test_a_full_lane_is_asked_each_time() -> None:
    store, places = store_of(waits(1), waits(2)), [1]

    def admit(*_: object) -> Admission:
        if not places:
            return Admission(None, FULL)
        places.pop()
        return NO_CALL

    assert [waiting for waiting, _ in store.due(100, 9, admit)] == [waits(1)]
    assert store.is_due("file:receipts", 100)
    assert store.due(100, 9, admit) == []
    places.append(1)
    assert [waiting for waiting, _ in store.due(100, 9, admit)] == [waits(2)]
    assert not store.is_due("file:receipts", 100)


def test_an_effect_that_was_not_called_is_due_as_before_or_later_without_a_change() -> None:
    store = store_of(waits(1, 10), waits(2, 20))
    assert due(store, 30, 9) == [waits(1, 10), waits(2, 20)]
    store.give_back(waits(1).request.effect_id, 500)
    store.give_back(waits(2).request.effect_id)
    assert list(store.changes()) == []
    assert due(store, 499, 9) == [waits(2, 20)]
    assert due(store, 500, 9) == [waits(1, 10)]


def test_an_effect_that_is_called_already_is_not_due_when_it_is_committed() -> None:
    store = store_of(waits(1))
    store.take(waits(1).request.effect_id)
    assert due(store, 100, 9) == []
    store.remove(waits(1).request.effect_id)
    store.commit()
    assert (len(store), store.counts) == (0, {})


def test_the_first_of_each_lane_are_those_that_an_owner_may_have_taken() -> None:
    store = store_of(
        *(waits(number, 10 + number) for number in range(5)),
        *(waits(number, 10 + number, destination="file:others") for number in range(5, 7)),
        ordered(8, 9, account="576"),
        ordered(9, 8, account="576"),
    )
    numbers = [int(effect_id, 16) for effect_id in store.first(15, 2)]
    assert sorted(numbers) == [0, 5, 8], "of a chain only the first, of a lane the first by time, and none too early"
    assert len(store.first(100, 0)) == 8


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
    assert due(store, 100, 5) == [kept, gone]


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
        assert due(each, 19, 5) == []
        assert due(each, 20, 5) == [ordered(1, 20)]
