"""The store of waiting effects against a dictionary that is searched each time."""

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.outbox.lanes import NO_CALL
from services.outbox.waiting import WaitingStore
from shared.eos.store import Change
from shared.events.effects import Waiting
from tests.sinks.effects import effect
from tests.stores import compacted, restore

NUMBERS = st.integers(0, 5)
TIMES_MS = st.integers(0, 5)
ACCOUNTS = ("2378", "576")
LIMITS = st.integers(1, 3)


def waits(number: int, not_before_ms: int) -> Waiting:
    """An effect; two of three keep an order, in two chains. Higher numbers came first."""
    request = effect(number, "file:receipts", ordered=number % 3 > 0, account=ACCOUNTS[number % 2])
    return Waiting(request, "effects.requests:0:0", "payments.raw:0:0", 1, 0, not_before_ms, 100 - number)


def place(waiting: Waiting) -> tuple[int, int]:
    """Its place among the due effects."""
    return waiting.not_before_ms, waiting.sequence


class WaitingMachine(RuleBasedStateMachine):
    """A store, the state in its open transaction, and the committed state."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WaitingStore()
        self.changelog: list[Change] = []
        self.committed: dict[str, Waiting] = {}
        self.seen: dict[str, Waiting] = {}
        self.taken: set[str] = set()
        self.touched: set[str] = set()  # by the open transaction

    @rule(number=NUMBERS, not_before_ms=TIMES_MS)
    def put(self, number: int, not_before_ms: int) -> None:
        waiting = waits(number, not_before_ms)
        self.store.put(waiting.request.effect_id, waiting)
        self.seen[waiting.request.effect_id] = waiting
        self.touched.add(waiting.request.effect_id)

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        effect_id = waits(number, 0).request.effect_id
        self.store.remove(effect_id)
        if self.seen.pop(effect_id, None) is not None:
            self.touched.add(effect_id)

    @rule()
    def commit(self) -> None:
        changes = list(self.store.changes())
        assert len(dict(changes)) == len(changes)
        self.changelog += changes
        self.store.commit()
        self.taken -= self.touched
        self.committed = self.seen.copy()
        self.touched.clear()

    @rule()
    def roll_back(self) -> None:
        self.store.rollback()
        self.seen = self.committed.copy()
        self.touched.clear()

    @rule(number=NUMBERS)
    def give_back(self, number: int) -> None:
        effect_id = waits(number, 0).request.effect_id
        if effect_id in self.taken:
            self.store.give_back(effect_id)
            self.taken.remove(effect_id)

    @rule(now_ms=TIMES_MS, limit=LIMITS)
    def take_what_is_due(self, now_ms: int, limit: int) -> None:
        due = [
            waiting
            for effect_id, waiting in self.committed.items()
            if waiting.not_before_ms <= now_ms and effect_id not in self.taken and self.first_of_chain(waiting)
        ]
        found = [waiting for waiting, _ in self.store.due(now_ms, limit, lambda *_: NO_CALL)]
        assert found == sorted(due, key=place)[:limit]
        self.taken.update(waiting.request.effect_id for waiting in found)

    @rule(clean_until=st.integers(0, 60))
    def restart(self, clean_until: int) -> None:
        self.store = WaitingStore()
        restore(self.store, compacted(self.changelog, clean_until))
        self.roll_back()
        self.taken.clear()

    @invariant()
    def agrees(self) -> None:
        assert dict(self.store.items()) == self.committed
        assert len(self.store) == len(self.committed)
        for number in range(6):
            waiting = waits(number, 0)
            assert self.store.get(waiting.request.effect_id) == self.seen.get(waiting.request.effect_id)
            chain = self.chain(waiting)
            assert self.store.counts["file:receipts"] == len(self.committed)
            if waiting.request.ordered:
                assert self.store.has_chain((waiting.request.account, "file:receipts")) == bool(chain)

    def chain(self, waiting: Waiting) -> list[Waiting]:
        """The committed effects of its chain, in their order."""
        if not waiting.request.ordered:
            return []
        same = [other for other in self.committed.values() if other.request.account == waiting.request.account]
        return sorted((other for other in same if other.request.ordered), key=lambda other: other.sequence)

    def first_of_chain(self, waiting: Waiting) -> bool:
        return not waiting.request.ordered or self.chain(waiting)[0] == waiting


TestWaiting = WaitingMachine.TestCase


def test_the_model_distinguishes_chains() -> None:
    machine = WaitingMachine()
    for number in (1, 5, 2, 3):
        machine.put(number, 5)
    machine.commit()
    [last, first] = [waits(1, 5), waits(5, 5)]
    assert machine.chain(first) == [first, last]
    assert machine.chain(waits(3, 5)) == []
    assert msgspec.json.encode(machine.chain(waits(2, 5))) == msgspec.json.encode([waits(2, 5)])
