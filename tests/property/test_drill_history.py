"""The checker of histories: silent on correct ones, and finds each anomaly that is planted into them."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deploy.drills.checker import Fate, check, fates
from deploy.drills.drill import Anomaly
from deploy.drills.history import Event, Function, History, Look, Type, Value
from tests.registers import Registers

STALL_S = 1000.0
histories = st.builds(
    lambda seed, steps: Registers(random.Random(seed)).run(steps), st.integers(0, 2**32), st.integers(5, 120)
)


@given(histories)
def test_a_correct_history_has_no_anomaly(history: History) -> None:
    assert check(history, stall_s=STALL_S) == {}


@given(histories)
def test_a_history_survives_its_journal(history: History) -> None:
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history


def test_histories_have_what_they_are_for() -> None:
    history = Registers(random.Random(1)).run(2000)
    assert all(count > 20 for count in fates(history).values())
    assert {event.type for event in history.events} == set(Type)
    assert {event.function for event in history.events} == set(Function)
    assert len(history.log) > 100
    assert any(look.stable < look.end for look in history.looks)


# Planted anomalies. Each takes a correct history and returns it with the anomaly, or None where it has no place for it


def _committed(history: History, *ends: Type) -> list[Event]:
    """The completions of commits that ended so."""
    return [event for event in history.events if event.function is Function.COMMIT and event.type in ends]


def _values(history: History, transaction: int) -> list[Value]:
    return [
        value
        for event in history.events
        if event.transaction == transaction and event.function is Function.APPEND and event.type is Type.INVOKE
        for value in event.values
    ]


def _unread(history: History, values: list[Value]) -> None:
    """Take values out of the log and all polls."""
    numbers = {value.value for value in values}
    history.log = [one for one in history.log if one.value not in numbers]
    history.events = [
        msgspec.structs.replace(event, values=[one for one in event.values if one.value not in numbers])
        if event.function is Function.POLL
        else event
        for event in history.events
    ]


def _ends(history: History, partition: int) -> int:
    return max((look.end for look in history.looks if look.partition == partition), default=0) + 1000


def aborted_read(history: History, chance: random.Random) -> bool:
    """The log has a value of an aborted transaction."""
    ends = [event for event in history.events if event.function is Function.ABORT and event.type is Type.OK]
    values = [value for event in ends for value in _values(history, event.transaction)]
    if not values:
        return False
    value = chance.choice(values)
    history.log.append(value._replace(offset=_ends(history, value.partition)))
    return True


def phantom(history: History, chance: random.Random) -> bool:
    """A reader polls a value that no process wrote."""
    partition = chance.randrange(3)
    read = Value(partition, -7, _ends(history, partition))
    history.events.append(Event(999.0, "reader-9", Type.OK, Function.POLL, values=[read]))
    return True


def lost_write(history: History, chance: random.Random) -> bool:
    """A committed value is nowhere."""
    ended = _committed(history, Type.OK)
    if not ended:
        return False
    _unread(history, [chance.choice(_values(history, chance.choice(ended).transaction))])
    return True


def torn(history: History, chance: random.Random) -> bool:
    """A part of a transaction with an unknown outcome is missing."""
    in_log = {value.value for value in history.log}
    parts = [_values(history, event.transaction) for event in _committed(history, Type.INFO)]
    whole = [values for values in parts if len(values) > 1 and values[0].value in in_log]
    if not whole:
        return False
    _unread(history, [chance.choice(chance.choice(whole))])
    return True


def duplicate(history: History, chance: random.Random) -> bool:
    """A value is in the log twice."""
    if not history.log:
        return False
    value = chance.choice(history.log)
    history.log.append(value._replace(offset=_ends(history, value.partition)))
    return True


def inconsistent_offsets(history: History, chance: random.Random) -> bool:
    """A reader polled another value at an offset of the log."""
    if len(history.log) < 2:
        return False
    first, second = chance.sample(history.log, 2)
    history.events.append(Event(999.0, "reader-9", Type.OK, Function.POLL, values=[first._replace(value=second.value)]))
    return True


def nonmonotonic_poll(history: History, chance: random.Random) -> bool:
    """A reader polls a value again."""
    polls = [event for event in history.events if event.function is Function.POLL and event.values]
    if not polls:
        return False
    event = chance.choice(polls)
    again = msgspec.structs.replace(event, values=[chance.choice(event.values)])
    history.events += [msgspec.structs.replace(again, type=Type.INVOKE, values=[]), again]
    return True


def poll_skip(history: History, chance: random.Random) -> bool:
    """A reader polls values before and behind one, and not that."""
    by_partition = [[one for one in history.log if one.partition == partition] for partition in range(3)]
    long = [values for values in by_partition if len(values) > 2]
    if not long:
        return False
    values = chance.choice(long)
    del values[chance.randrange(1, len(values) - 1)]
    history.events.append(Event(999.0, "reader-9", Type.OK, Function.POLL, values=values))
    return True


def precommitted_read(history: History, chance: random.Random) -> bool:
    """A reader polled a value of a transaction before its commit was asked for."""
    ended = _committed(history, Type.OK)
    if not ended:
        return False
    one = chance.choice(ended).transaction
    place = next(
        place
        for place, event in enumerate(history.events)
        if event.transaction == one and event.function is Function.APPEND and event.type is Type.OK
    )
    value = next(value for value in history.log if value.value == history.events[place].values[0].value)
    history.events.insert(place + 1, Event(0.0, "reader-9", Type.OK, Function.POLL, values=[value]))
    return True


def zombie_commit(history: History, chance: random.Random) -> bool:
    """A fenced producer's commit took effect, and its client knows."""
    fenced = [place for place, event in enumerate(history.events) if event.type is Type.FAIL]
    if not fenced:
        return False
    place = chance.choice(fenced)
    history.events[place] = msgspec.structs.replace(history.events[place], type=Type.OK)
    for value in _values(history, history.events[place].transaction):
        history.log.append(value._replace(offset=_ends(history, value.partition) + value.value))
    return True


def unknown_zombie_commit(history: History, chance: random.Random) -> bool:
    """A fenced producer's commit took effect, and its client does not know."""
    fenced = [place for place, event in enumerate(history.events) if event.type is Type.FAIL]
    planted = zombie_commit(history, chance)
    if planted:
        for place in fenced:
            history.events[place] = msgspec.structs.replace(history.events[place], type=Type.INFO)
    return planted


def lso_stall(history: History, chance: random.Random) -> bool:
    """The last stable offset stays below the end."""
    partition = chance.randrange(3)
    history.looks += [Look(2000.0 + at_s, partition, 5, 6 + at_s) for at_s in range(int(STALL_S) + 2)]
    return True


Plant = Callable[[History, random.Random], bool]
PLANTED: dict[Plant, Anomaly] = {
    aborted_read: Anomaly.ABORTED_READ,
    phantom: Anomaly.ABORTED_READ,
    lost_write: Anomaly.LOSS,
    torn: Anomaly.TORN,
    duplicate: Anomaly.DUPLICATE,
    inconsistent_offsets: Anomaly.INCONSISTENT_OFFSETS,
    nonmonotonic_poll: Anomaly.NONMONOTONIC_POLL,
    poll_skip: Anomaly.POLL_SKIP,
    precommitted_read: Anomaly.PRECOMMITTED_READ,
    zombie_commit: Anomaly.ZOMBIE_COMMIT,
    unknown_zombie_commit: Anomaly.ZOMBIE_COMMIT,
    lso_stall: Anomaly.LSO_STALL,
}
_ALSO: dict[Plant, set[Anomaly]] = {
    # A value at another place is there twice, and one that is read there was read out of turn
    aborted_read: {Anomaly.INCONSISTENT_OFFSETS},
    inconsistent_offsets: {Anomaly.DUPLICATE, Anomaly.PRECOMMITTED_READ},
}
"""Further anomalies that a planted one may be seen as."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@given(history=histories, seed=st.integers(0, 2**32))
def test_a_planted_anomaly_is_found_and_no_other(plant: Plant, history: History, seed: int) -> None:
    assume(plant(history, random.Random(seed)))
    found = check(history, stall_s=STALL_S)
    assert PLANTED[plant] in found
    assert found.keys() - {PLANTED[plant]} <= _ALSO.get(plant, set())


def test_every_kind_that_a_history_shows_is_planted() -> None:
    known = set(Anomaly) - {
        Anomaly.REORDERED,
        Anomaly.DEADLOCK,
        Anomaly.MUTUAL_FENCING,
        Anomaly.OPEN_TRANSACTION_LEFT,
    }
    assert set(PLANTED.values()) == known


# Bounds


def test_a_stable_offset_that_moves_or_has_no_looks_does_not_stall() -> None:
    moving = [Look(float(at_s), 0, at_s, at_s + 1) for at_s in range(20)]
    apart = [Look(at_s, 0, 5, 6) for at_s in (0.0, 9.0, 18.0)]
    reached = [Look(float(at_s), 0, 5, 5 if at_s == 8 else 6) for at_s in range(15)]
    for looks in (moving, apart, reached):
        assert check(History(looks=looks), stall_s=10.0) == {}
    stalled = [Look(float(at_s), 0, 5, 6) for at_s in range(12)]
    assert check(History(looks=stalled), stall_s=10.0) == {Anomaly.LSO_STALL: ["partition 0: at 5 for 11 s, below 6"]}


def _transaction(process: str, number: int, end: Type | None) -> list[Event]:
    value = [Value(0, number)]
    appended = [
        Event(0.0, process, kind, Function.APPEND, transaction=number, values=value) for kind in (Type.INVOKE, Type.OK)
    ]
    ended = [Event(0.0, process, Type.INVOKE, Function.COMMIT, transaction=number)] if end is not None else []
    return [*appended, *ended, *([Event(0.0, process, end, Function.COMMIT, transaction=number)] if end else [])]


def test_a_history_that_was_broken_off_shows_no_loss() -> None:
    events = _transaction("w", 1, Type.OK)
    assert check(History(events), stall_s=1.0) == {}
    found = check(History(events, is_complete=True), stall_s=1.0)
    assert found == {Anomaly.LOSS: ["1 on partition 0: transaction 1 of w was committed"]}


def test_a_commit_without_an_answer_may_have_taken_effect_or_not() -> None:
    events = _transaction("w", 1, Type.INFO)
    for log in ([], [Value(0, 1, 0)]):
        assert check(History(events, log=log, is_complete=True), stall_s=1.0) == {}
    assert fates(History(events)) == {Fate.COMMITTED: 0, Fate.ABORTED: 0, Fate.UNKNOWN: 1}


def test_a_transaction_that_was_never_to_be_committed_must_not_be_read() -> None:
    found = check(History(_transaction("w", 1, None), log=[Value(0, 1, 0)]), stall_s=1.0)
    assert found == {Anomaly.ABORTED_READ: ["1 at 0:0: transaction 1 of w was not committed"]}


def test_a_commit_that_was_invoked_before_its_successor_is_no_zombies() -> None:
    init = [Event(0.0, "w", kind, Function.INIT, transactional_id="x") for kind in (Type.INVOKE, Type.OK)]
    after = [msgspec.structs.replace(event, process="v") for event in init]
    *begun, ended = _transaction("w", 1, Type.OK)
    log = [Value(0, 1, 0)]
    assert check(History([*init, *begun, *after, ended], log=log), stall_s=1.0) == {}
    found = check(History([*init, *begun[:-1], *after, begun[-1], ended], log=log), stall_s=1.0)
    assert found == {Anomaly.ZOMBIE_COMMIT: ["transaction 1 of w took effect after v had been initialised"]}
