"""Stores: reads in an open transaction, commits, rollbacks, and restores from a changelog."""

import tracemalloc

import pytest

from shared.eos.store import Change, Stores, Table
from shared.eos.window import Window
from tests.stores import commit, restore


def names() -> Table[list[str]]:
    return Table(b"name/", lambda value: ",".join(value).encode(), lambda value: value.decode().split(","), list)


def key(number: int) -> bytes:
    return b"%016d" % number


def filled(capacity: int, count: int) -> tuple[Window, list[Change]]:
    window, changelog = Window(b"w/", capacity), list[Change]()
    for number in range(count):
        window.put(key(number), b"%d" % number)
        commit(window, changelog)
    return window, changelog


def test_a_table_sees_its_own_open_transaction() -> None:
    table = names()
    table.put("a", ["1"])
    assert table.get("a") == ["1"]
    assert len(table) == 0
    table.commit()
    assert dict(table.items()) == {"a": ["1"]}


def test_a_rollback_also_reverts_changes_in_place() -> None:
    table = names()
    table.put("a", ["1"])
    table.commit()
    edited = table.edit("a")
    assert edited is not None
    edited.append("2")
    assert table.get("a") == ["1", "2"]
    table.rollback()
    assert table.get("a") == ["1"]


def test_a_table_copies_a_value_once_for_each_transaction() -> None:
    table = names()
    table.put("a", ["1"])
    table.commit()
    first = table.edit("a")
    assert table.edit("a") is first
    table.commit()
    assert table.edit("a") is not first
    assert table.edit("b") is None


def test_a_table_writes_each_changed_name_once_and_restores_it() -> None:
    table, restored = names(), names()
    table.put("a", ["1"])
    table.put("a", ["2"])
    table.put("ž", ["3"])
    changes = list(table.changes())
    assert changes == [(b"name/a", b"2"), ("name/ž".encode(), b"3")]
    restore(restored, [*changes, (b"name/a", None), (b"name/never", None)])
    assert dict(restored.items()) == {"ž": ["3"]}


def test_several_stores_are_distinguished_by_prefix() -> None:
    table, window = names(), Window(b"w/", 2)
    stores = Stores(table, window)
    table.put("a", ["1"])
    window.put(key(1), b"one")
    changes = list(stores.changes())
    stores.rollback()
    assert list(stores.changes()) == []
    restore(stores, changes)
    assert table.get("a") == ["1"]
    assert window.get(key(1)) == b"one"
    table.put("b", ["2"])
    window.put(key(2), b"two")
    stores.commit()
    assert (len(table), len(window)) == (2, 2)


def test_a_record_of_another_store_is_refused() -> None:
    with pytest.raises(ValueError, match="no store for changelog key b'other/1'"):
        Stores(names()).restore(b"other/1", b"")


def test_a_window_needs_room_and_keys_of_16_bytes() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        Window(b"w/", 0)
    with pytest.raises(ValueError, match="16 bytes"):
        Window(b"w/", 1).put(b"short", b"")


def test_a_window_forgets_the_oldest_entry_within_the_transaction() -> None:
    window, _ = filled(2, 2)
    window.put(key(2), b"2")
    assert [window.get(key(number)) for number in range(3)] == [None, b"1", b"2"]
    window.rollback()
    assert [window.get(key(number)) for number in range(3)] == [b"0", b"1", None]


def test_a_new_payload_leaves_an_entry_its_age() -> None:
    window, changelog = filled(2, 2)
    window.put(key(0), b"new")
    assert window.get(key(0)) == b"new"
    commit(window, changelog)
    assert changelog[-1] == (b"w/0", key(0) + b"new")
    window.put(key(2), b"2")
    assert window.get(key(0)) is None


def test_a_window_writes_an_entry_and_a_tombstone() -> None:
    window, _ = filled(2, 2)
    window.put(key(2), b"2")
    assert list(window.changes()) == [(b"w/2", key(2) + b"2"), (b"w/0", None)]


def test_an_entry_added_and_evicted_in_one_transaction_is_never_written() -> None:
    window, changelog = filled(2, 2)
    for number in range(2, 7):
        window.put(key(number), b"%d" % number)
    changes = list(window.changes())
    assert changes == [(b"w/5", key(5) + b"5"), (b"w/6", key(6) + b"6"), (b"w/0", None), (b"w/1", None)]
    commit(window, changelog)
    window.put(key(7), b"7")
    assert list(window.changes()) == [(b"w/7", key(7) + b"7"), (b"w/5", None)]


def test_an_evicted_key_may_be_added_again() -> None:
    window, changelog = filled(2, 3)
    window.put(key(0), b"again")
    commit(window, changelog)
    assert [window.get(key(number)) for number in range(3)] == [b"again", None, b"2"]


def test_many_laps_leave_exactly_the_last_entries() -> None:
    window, changelog = filled(7, 100)
    assert [number for number in range(100) if window.get(key(number)) is not None] == list(range(93, 100))
    assert len(window) == 7
    alive: set[bytes] = set()
    for store_key, value in changelog:
        (alive.discard if value is None else alive.add)(store_key)
    assert alive == {b"w/%d" % number for number in range(93, 100)}


def test_a_smaller_window_restores_the_youngest_and_evicts_the_others() -> None:
    _, changelog = filled(10, 30)
    smaller = Window(b"w/", 4)
    restore(smaller, changelog)
    assert [number for number in range(30) if smaller.get(key(number)) is not None] == [26, 27, 28, 29]
    smaller.put(key(30), b"30")
    evicted = [store_key for store_key, value in smaller.changes() if value is None]
    assert evicted == [b"w/%d" % number for number in range(20, 27)]


def test_a_much_smaller_window_evicts_over_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "TOMBSTONES_MAX", 3)
    _, changelog = filled(10, 10)
    smaller = Window(b"w/", 1)
    restore(smaller, changelog)
    evicted = []
    for number in range(10, 13):
        smaller.put(key(number), b"")
        evicted.append([int(store_key[2:]) for store_key, value in smaller.changes() if value is None])
        smaller.commit()
    assert evicted == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_larger_window_ignores_stale_entries_in_unwritten_places() -> None:
    window, changelog = filled(1, 4)
    for number in range(4, 7):
        window.put(key(number), b"%d" % number)
    commit(window, changelog)  # evicts 3 and never writes 4 and 5, whose places a larger window has
    larger = Window(b"w/", 2)
    restore(larger, changelog)
    assert [number for number in range(7) if larger.get(key(number)) is not None] == [6]
    assert len(larger) == 1


def test_a_larger_window_grows_from_what_is_left() -> None:
    _, changelog = filled(2, 9)
    larger = Window(b"w/", 4)
    restore(larger, changelog)
    assert len(larger) == 2
    for number in range(9, 12):
        larger.put(key(number), b"")
        larger.commit()
    assert [number for number in range(12) if larger.get(key(number)) is not None] == [8, 9, 10, 11]


def test_the_newer_of_two_entries_of_a_key_counts_after_two_changes_of_capacity() -> None:
    _, changelog = filled(10, 5)
    changelog.append((b"w/5", key(1) + b"younger"))
    for records in (changelog, [changelog[-1], *changelog[:-1]]):
        window = Window(b"w/", 10)
        restore(window, records)
        assert window.get(key(1)) == b"younger"
        assert len(window) == 5


def test_a_full_window_is_small() -> None:
    """250 MB for a process with six full windows leaves 220 bytes for an entry; a payload here is ingest's, 24."""
    capacity = 20_000
    tracemalloc.start()
    try:
        window = Window(b"w/", capacity)
        for number in range(3 * capacity):
            window.put(key(number), number.to_bytes(24, "big"))
            if number % 1000 == 0:
                window.commit()
        window.commit()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(window) == capacity
    assert used / capacity < 150
