"""Stores against simple models: decisions do not depend on transaction boundaries, and a changelog restores all."""

from hypothesis import example, given
from hypothesis import strategies as st

from shared.eos.store import Change, Table
from shared.eos.window import Window
from tests.stores import commit, compacted, restore

KEYS = [b"%016d" % number for number in range(12)]
PUT, RENEW, COMMIT, ROLLBACK = "put", "renew", "commit", "rollback"

puts = st.tuples(st.just(PUT), st.sampled_from(KEYS), st.binary(max_size=3))
ends = st.tuples(st.sampled_from([COMMIT, COMMIT, ROLLBACK]), st.just(b""), st.just(b""))
renewals = st.tuples(st.just(RENEW), st.sampled_from(KEYS), st.binary(max_size=3))
steps = st.lists(puts | ends, max_size=120)
all_steps = st.lists(puts | renewals | ends, max_size=120)
capacities = st.integers(1, 9)


class Model:
    """The window as a list of additions, without transactions: each key, or None where it was renewed since."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.additions: list[bytes | None] = []
        self.payloads: dict[bytes, bytes] = {}

    @property
    def entries(self) -> dict[bytes, bytes]:
        return {key: self.payloads[key] for key in self.additions[-self.capacity :] if key is not None}

    def put(self, key: bytes, payload: bytes) -> None:
        if key not in self.entries:
            self.renew(key, payload)
        self.payloads[key] = payload

    def renew(self, key: bytes, payload: bytes) -> None:
        self.additions = [None if known == key else known for known in self.additions] + [key]
        self.payloads[key] = payload

    def copy(self) -> "Model":
        copy = Model(self.capacity)
        copy.additions, copy.payloads = self.additions.copy(), self.payloads.copy()
        return copy


def seen(window: Window) -> dict[bytes, bytes]:
    payloads = ((key, window.get(key)) for key in KEYS)
    return {key: payload for key, payload in payloads if payload is not None}


def effect(window: Window, changelog: list[Change]) -> dict[bytes, bytes]:
    """The changelog's content with the open transaction; a tombstone for an absent key changes nothing."""
    content = dict([*changelog, *window.changes()])
    return {store_key: value for store_key, value in content.items() if value is not None}


def run(steps: list[tuple[str, bytes, bytes]], capacity: int) -> tuple[Window, Model, list[Change]]:
    """Run the steps on a window and its model; after each the two must agree."""
    window, changelog = Window(b"w/", capacity), list[Change]()
    model, committed = Model(capacity), Model(capacity)
    for step, key, payload in steps:
        if step in {PUT, RENEW}:
            getattr(window, step)(key, payload)
            getattr(model, step)(key, payload)
        elif step == COMMIT:
            commit(window, changelog)
            committed = model.copy()
        else:
            window.rollback()
            model = committed.copy()
        assert seen(window) == model.entries
    window.rollback()
    return window, committed, changelog


@given(all_steps, capacities)
@example(
    [(PUT, KEYS[0], b""), (PUT, KEYS[1], b""), (COMMIT, b"", b""), *[(RENEW, KEYS[2], b"")] * 2, (COMMIT, b"", b"")], 2
)
def test_a_window_equals_its_model_for_any_transactions(steps: list[tuple[str, bytes, bytes]], capacity: int) -> None:
    window, committed, _ = run(steps, capacity)
    assert seen(window) == committed.entries
    assert len(window) == len(committed.entries)


@given(st.lists(puts | renewals, max_size=80), capacities, st.sets(st.integers(0, 80)))
def test_decisions_do_not_depend_on_where_transactions_end(
    puts: list[tuple[str, bytes, bytes]], capacity: int, ends: set[int]
) -> None:
    whole, cut = Window(b"w/", capacity), Window(b"w/", capacity)
    for position, (step, key, payload) in enumerate(puts):
        assert whole.get(key) == cut.get(key)
        for window in (whole, cut):
            getattr(window, step)(key, payload)
        if position in ends:
            cut.commit()
    assert seen(whole) == seen(cut)


@given(all_steps, all_steps, capacities, st.integers(0, 200))
def test_a_restored_window_continues_as_the_live_one(
    steps: list[tuple[str, bytes, bytes]],
    further: list[tuple[str, bytes, bytes]],
    capacity: int,
    clean_until: int,
) -> None:
    live, _, changelog = run(steps, capacity)
    restored = Window(b"w/", capacity)
    restore(restored, compacted(changelog, clean_until))
    assert seen(restored) == seen(live)
    assert len(restored) == len(live)
    for step, key, payload in further:
        for window in (live, restored):
            if step in {PUT, RENEW}:
                getattr(window, step)(key, payload)
            elif step == ROLLBACK:
                window.rollback()
        if step == COMMIT:
            live.commit()
            commit(restored, changelog)
        assert seen(restored) == seen(live)
        assert effect(restored, changelog) == effect(live, changelog)


@given(steps, st.integers(0, 20), capacities, capacities)
def test_another_capacity_restores_the_youngest_and_deletes_the_others(
    steps: list[tuple[str, bytes, bytes]], further: int, before: int, after: int
) -> None:
    _, committed, changelog = run(steps, before)
    window, model = Window(b"w/", after), Model(after)
    restore(window, changelog)
    written = sum(value is not None for value in dict(changelog).values())
    assert window.excess >= written - after
    for key, payload in committed.entries.items():
        model.put(key, payload)
    assert seen(window) == model.entries
    # Keys that are new to the window: only an addition evicts
    for number in range(further):
        window.put(b"%016d" % (100 + number), b"")
        model.put(b"%016d" % (100 + number), b"")
        commit(window, changelog)
        alive = [store_key for store_key, value in dict(changelog).items() if value is not None]
        assert len(alive) == len(window) == len(model.entries)
        assert window.excess == 0
        assert seen(window) == {key: model.entries[key] for key in KEYS if key in model.entries}


table_steps = st.lists(
    st.tuples(st.sampled_from(["put", "edit", COMMIT, ROLLBACK]), st.text(max_size=2), st.integers(-(2**70), 2**70)),
    max_size=60,
)


@given(table_steps, st.integers(0, 60))
def test_a_table_is_a_dict_and_its_changelog_restores_it(steps: list[tuple[str, str, int]], clean_until: int) -> None:
    table, restored = numbers(), numbers()
    open_, committed, changelog = dict[str, list[int]](), dict[str, list[int]](), list[Change]()
    for step, name, number in steps:
        if step == "put":
            table.put(name, [number])
            open_[name] = [number]
        elif step == "edit":
            edited = table.edit(name)
            assert (edited is None) == (name not in open_)
            if edited is not None:
                edited[0] += number
                open_[name] = [open_[name][0] + number]
        elif step == COMMIT:
            commit(table, changelog)
            committed = dict(open_)
        else:
            table.rollback()
            open_ = dict(committed)
        assert table.get(name) == open_.get(name)
    table.rollback()
    restore(restored, compacted(changelog, clean_until))
    assert dict(table.items()) == dict(restored.items()) == committed


def numbers() -> Table[list[int]]:
    return Table(b"n/", lambda value: b"%d" % value[0], lambda value: [int(value)], list)
