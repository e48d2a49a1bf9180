"""Which requests are claimed, put aside, or held: a lane's backlog holds up no other, and is written at most once."""

from dataclasses import dataclass, field

from services.outbox.domain import Job
from services.outbox.flights import Flight
from services.outbox.intake import Entry, Wish, admit_half, plan
from services.outbox.lanes import FULL, Admission, Lane
from services.outbox.waiting import WaitingStore
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_REQUESTS
from shared.events.effects import EffectRequest, Waiting
from tests.sinks.effects import effect

NOW_MS = 1000
A, B = "https://a.example", "https://b.example"


@dataclass
class FakeGate:
    """Lanes with set room; those in `slow` are not quick, those in `closed` are not called for a while."""

    rooms: dict[str, int] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)

    def admit(self, request: EffectRequest, _first_ms: int) -> Admission:
        name = request.destination
        if name in self.closed:
            return Admission(None, 9.0)
        if self.room(request) == 0:
            return Admission(None, FULL)
        self.rooms[name] -= 1
        return Admission(Lane(name, 1))

    def is_quick(self, request: EffectRequest) -> bool:
        return request.destination not in self.slow

    def room(self, request: EffectRequest) -> int:
        return self.rooms.setdefault(request.destination, 1000)


def entry(number: int, destination: str = A, action: str | None = None, **changes: object) -> Entry:
    request = effect(number, destination, **changes)
    job = Job(request, b"effects.requests:0:1", b"payments.raw:0:0", number, takes_keys=True, action=action)
    return Entry(Record(EFFECTS_REQUESTS, 0, number, 0, b"", b"", ()), job)


def store(*waiting: Entry) -> WaitingStore:
    found = WaitingStore()
    for one in waiting:
        record = Waiting(one.job.request, "effects.requests:0:1", "payments.raw:0:0", 1, 0, 0, one.job.sequence)
        found.put(one.job.effect_id, record)
    found.commit()
    return found


def planned(inbox: list[Entry], gate: FakeGate, waiting: WaitingStore | None = None, room: int = 99) -> str:
    """What becomes of each entry: Claimed, Aside, Repeated, or left (-)."""
    wishes = plan(inbox, room, gate, waiting or store(), {}, NOW_MS)
    claimed = {id(wish.entry) for wish in wishes}

    def shown(one: Entry) -> str:
        if id(one) in claimed:
            return "C"
        return "R" if one.repeated else "A" if one.later is not None else "-"

    return "".join(map(shown, inbox))


def test_what_a_lane_has_no_room_for_goes_aside_and_others_pass() -> None:
    inbox = [entry(number, place) for number, place in enumerate([A, A, A, B, A])]
    assert planned(inbox, FakeGate({A: 1}, slow={A})) == "CAACA"
    assert planned([entry(1), entry(2, B)], FakeGate(closed={A})) == "AC"


def test_a_quick_lane_holds_its_requests_unless_another_could_be_called() -> None:
    assert planned([entry(number) for number in range(4)], FakeGate({A: 2})) == "CC--"
    places = [A, A, A, B, A, A]
    assert planned([entry(number, place) for number, place in enumerate(places)], FakeGate({A: 1})) == "CAAC--"
    both_full = [entry(number, place) for number, place in enumerate([A, B, A, B])]
    assert planned(both_full, FakeGate({A: 0, B: 0})) == "----"


def test_requests_go_behind_what_waits_in_a_lane_that_is_not_quick() -> None:
    assert planned([entry(1), entry(2, B)], FakeGate(slow={A}), store(entry(9))) == "AC"
    assert planned([entry(1), entry(2, B)], FakeGate(), store(entry(9))) == "CC"
    assert planned([entry(1), entry(2)], FakeGate({A: 1}), store(entry(9))) == "C-"


def test_what_waited_leaves_half_of_a_quick_lane_to_requests() -> None:
    def due(gate: FakeGate, limit: int = 99) -> int:
        waiting = store(*(entry(number) for number in range(10)))
        return len(waiting.due(NOW_MS, limit, admit_half(gate)))

    assert due(FakeGate({A: 7})) == 4
    assert due(FakeGate({A: 1})) == 1
    assert due(FakeGate({A: 0})) == 0
    assert due(FakeGate({A: 7}, slow={A})) == 7
    assert due(FakeGate(closed={A})) == 0
    inbox = [entry(number) for number in range(10, 20)]
    gate, waiting = FakeGate({A: 8}), store(*(entry(number) for number in range(10)))
    assert len(waiting.due(NOW_MS, 99, admit_half(gate))) == 4
    assert planned(inbox, gate, waiting) == "CCCC------"


def test_only_the_room_of_the_round_is_used() -> None:
    assert planned([entry(number) for number in range(4)], FakeGate(), room=2) == "CC--"


def test_an_effect_in_hand_or_waiting_is_a_repeat_and_one_in_the_inbox_must_be_committed_first() -> None:
    assert planned([entry(9), entry(2, B)], FakeGate(), store(entry(9))) == "RC"
    assert planned([entry(1), entry(2), entry(1), entry(3)], FakeGate()) == "CC--"


def test_a_chain_is_claimed_in_order_and_put_aside_together() -> None:
    inbox = [entry(number, ordered=True) for number in range(3)]
    wishes = plan(inbox, 99, FakeGate(), store(), {}, NOW_MS)
    assert [wish.entry for wish in wishes] == inbox
    assert [wish.after for wish in wishes] == [None, *inbox[:2]]
    inbox = [entry(number, ordered=True) for number in range(3)]
    assert planned([*inbox, entry(8, ordered=True, account="576")], FakeGate({A: 0}, slow={A})) == "AAAA"
    inbox = [entry(number, ordered=True) for number in range(3)]
    assert planned(inbox, FakeGate(), store(entry(9, ordered=True))) == "AAA"


def test_decisions_without_a_call_need_no_lane() -> None:
    inbox = [entry(1, action="confirm"), entry(2, action="abandon"), entry(3, action="resend")]
    wishes = plan(inbox, 99, FakeGate(closed={A}), store(), {}, NOW_MS)
    assert wishes == [Wish(one.job, None, one) for one in inbox[:2]]
    assert inbox[2].later is not None


def test_a_request_that_is_read_again_after_an_abort_takes_its_flight() -> None:
    again, other = entry(1), entry(2)
    flight = object.__new__(Flight)
    flight.stored = False
    [wish] = plan([again, other], 99, FakeGate(), store(), {again.job.effect_id: flight}, NOW_MS)
    assert wish.entry is other
    assert again.flight is flight
