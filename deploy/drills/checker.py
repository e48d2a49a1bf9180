"""The anomalies in a history of append-only registers, in Jepsen's vocabulary. Pure.

- aborted read (Jepsen: G1a): a read value whose transaction was aborted, was never to be committed, or was never made.
- precommitted read: a value that was read before its transaction was asked to commit.
- loss (lost write): a value whose commit was `ok`, and that is not in the log.
- torn: a commit with `info` of which a part is in the log, and a part is not.
- duplicate: a value at more than one offset.
- inconsistent offsets: an offset with more than one value, or a value on a partition that it was not written to.
- nonmonotonic poll: a reader polls an offset that is not above the last one that it polled there.
- poll skip: a reader polls past an offset that has a value, and never polls that.
- zombie commit: a commit that was invoked after another producer had been initialised with the transactional.id, and
  took effect.
- LSO stall: a last stable offset that stays below the log's end for longer than a bound, without moving.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from deploy.drills.drill import Anomaly
from deploy.drills.history import Event, Function, History, Look, Type, Value

LOOKED_S: Final = 5.0
"""Two looks at a partition that are farther apart say nothing about the time between: its leader may have been away."""


class Fate(Enum):
    """What a transaction's client knows of its end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class _Transaction:
    """One transaction; places are indices into the events."""

    def __init__(self, number: int, process: str) -> None:
        self.number = number
        self.process = process
        self.values: list[Value] = []
        self.commit_at: int | None = None
        self.commit_ended = Type.INFO

    @property
    def fate(self) -> Fate:
        if self.commit_at is None or self.commit_ended is Type.FAIL:
            return Fate.ABORTED
        return Fate.COMMITTED if self.commit_ended is Type.OK else Fate.UNKNOWN


class Init(NamedTuple):
    """A producer's initialisation: where it was invoked, and where it was ok."""

    process: str
    transactional_id: str
    invoked_at: int
    ok_at: int


class _Indexed:
    """A history by transaction, value and reader."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.transactions: dict[int, _Transaction] = {}
        self.inits: list[Init] = []
        self.polls: list[tuple[int, Event]] = []  # where each was completed
        pending: dict[str, int] = {}
        for place, event in enumerate(history.events):
            if event.type is Type.INVOKE:
                pending[event.process] = place
            self._add(place, event, pending.get(event.process, place))

    def _add(self, place: int, event: Event, invoked_at: int) -> None:
        is_ok = event.type is Type.OK
        if event.function is Function.POLL:
            if is_ok:
                self.polls.append((place, event))
        elif event.function is Function.INIT:
            if is_ok:
                self.inits.append(Init(event.process, event.transactional_id, invoked_at, place))
        else:
            one = self.transactions.setdefault(event.transaction, _Transaction(event.transaction, event.process))
            if event.function is Function.APPEND and event.type is Type.INVOKE:
                one.values += event.values
            elif event.function is Function.COMMIT and event.type is Type.INVOKE:
                one.commit_at = place
            elif event.function is Function.COMMIT:
                one.commit_ended = event.type

    @cached_property
    def writer(self) -> dict[int, _Transaction]:
        """Return the transaction of each value."""
        return {value.value: one for one in self.transactions.values() for value in one.values}

    @cached_property
    def partition(self) -> dict[int, int]:
        """Return the partition that each value was written to."""
        return {value.value: value.partition for one in self.transactions.values() for value in one.values}

    @cached_property
    def in_log(self) -> frozenset[int]:
        """Return the values in the log."""
        return frozenset(value.value for value in self.history.log)

    @cached_property
    def read(self) -> dict[Value, None]:
        """Return every value that was read with its place, by polls and in the log, in that order."""
        polled = (value for _, event in self.polls for value in event.values)
        return dict.fromkeys([*polled, *self.history.log])

    @cached_property
    def seen(self) -> frozenset[int]:
        """Return the values that were read anywhere."""
        return frozenset(value.value for value in self.read)

    @cached_property
    def readers(self) -> dict[tuple[str, int], list[Value]]:
        """Return the values that each reader polled from each partition, in order."""
        found: dict[tuple[str, int], list[Value]] = defaultdict(list)
        for _, event in self.polls:
            for value in event.values:
                found[event.process, value.partition].append(value)
        return found


def check(history: History, *, stall_s: float) -> dict[Anomaly, list[str]]:
    """Return the anomalies in a history by kind, one text for each: where it is.

    Args:
        stall_s: how long a last stable offset may stay below the log's end.
    """
    indexed = _Indexed(history)
    found = {kind: list(checker(indexed)) for kind, checker in _CHECKERS.items()}
    found[Anomaly.LSO_STALL] = list(_stalls(history, stall_s))
    return {kind: where for kind, where in found.items() if where}


def fates(history: History) -> Mapping[Fate, int]:
    """Return how many transactions ended how, as their clients know it."""
    counts = dict.fromkeys(Fate, 0)
    for one in _Indexed(history).transactions.values():
        counts[one.fate] += 1
    return counts


def _aborted_reads(of: _Indexed) -> Iterator[str]:
    for read in of.read:
        one = of.writer.get(read.value)
        if one is None:
            yield f"{_place(read)}: no process wrote it"
        elif one.fate is Fate.ABORTED:
            yield f"{_place(read)}: {_transaction(one)} was not committed"


def _precommitted_reads(of: _Indexed) -> Iterator[str]:
    for place, event in of.polls:
        for read in event.values:
            one = of.writer.get(read.value)
            if one is not None and one.commit_at is not None and place < one.commit_at:
                yield f"{_place(read)}: {event.process} polled it before {_transaction(one)} was asked to commit"


def _lost_writes(of: _Indexed) -> Iterator[str]:
    for one in of.transactions.values():
        if one.fate is Fate.COMMITTED and of.history.is_complete:
            for value in one.values:
                if value.value not in of.in_log:
                    yield f"{value.value} on partition {value.partition}: {_transaction(one)} was committed"


def _torn(of: _Indexed) -> Iterator[str]:
    for one in of.transactions.values():
        missing = [value.value for value in one.values if value.value not in of.in_log]
        if one.fate is Fate.UNKNOWN and 0 < len(missing) < len(one.values):
            yield f"{_transaction(one)}: {len(missing)} of {len(one.values)} values are missing, such as {missing[0]}"


def _duplicates(of: _Indexed) -> Iterator[str]:
    places: dict[int, list[Value]] = defaultdict(list)
    for read in of.read:
        places[read.value].append(read)
    for value, found in places.items():
        if len(found) > 1:
            yield f"{value}: at {', '.join(f'{one.partition}:{one.offset}' for one in sorted(found))}"


def _inconsistent_offsets(of: _Indexed) -> Iterator[str]:
    values: dict[tuple[int, int], list[int]] = defaultdict(list)
    for read in of.read:
        values[read.partition, read.offset].append(read.value)
        wanted = of.partition.get(read.value, read.partition)
        if wanted != read.partition:
            yield f"{_place(read)}: it was written to partition {wanted}"
    for (partition, offset), found in values.items():
        if len(found) > 1:
            yield f"{partition}:{offset}: {', '.join(map(str, sorted(found)))}"


def _nonmonotonic_polls(of: _Indexed) -> Iterator[str]:
    for (process, _), values in of.readers.items():
        for before, after in pairwise(values):
            if after.offset <= before.offset:
                yield f"{_place(after)}: {process} had polled {before.offset}"


def _poll_skips(of: _Indexed) -> Iterator[str]:
    for (process, partition), values in of.readers.items():
        offsets = {value.offset for value in values}
        first, last = min(offsets), max(offsets)
        for value in of.history.log:
            if value.partition == partition and first < value.offset < last and value.offset not in offsets:
                yield f"{_place(value)}: {process} polled up to {last}, and not this"


def _zombie_commits(of: _Indexed) -> Iterator[str]:
    for one in of.transactions.values():
        successor = _successor(of, one.process)
        if successor is None or one.commit_at is None or one.commit_at < successor.ok_at:
            continue
        if one.fate is Fate.COMMITTED or any(value.value in of.seen for value in one.values):
            yield f"{_transaction(one)} took effect after {successor.process} had been initialised"


def _successor(of: _Indexed, process: str) -> Init | None:
    """Return the first producer with the same transactional.id that was initialised after this one was."""
    own = next((one for one in of.inits if one.process == process), None)
    if own is None:
        return None
    later = (
        one
        for one in of.inits
        if one.transactional_id == own.transactional_id and one.process != process and one.invoked_at > own.ok_at
    )
    return min(later, key=lambda one: one.ok_at, default=None)


def _stalls(history: History, stall_s: float) -> Iterator[str]:
    looks: dict[int, list[Look]] = defaultdict(list)
    for look in history.looks:
        looks[look.partition].append(look)
    for partition, found in sorted(looks.items()):
        for run in _held(found):
            if run[-1].at_s - run[0].at_s > stall_s:
                held_s = run[-1].at_s - run[0].at_s
                yield f"partition {partition}: at {run[0].stable} for {held_s:.0f} s, below {run[0].end}"


def _held(looks: Sequence[Look]) -> Iterator[list[Look]]:
    """Yield the looks during which the last stable offset stayed at the same place below the log's end."""
    run: list[Look] = []
    for look in looks:
        held = look.stable < look.end
        if run and held and look.stable == run[-1].stable and look.at_s - run[-1].at_s <= LOOKED_S:
            run.append(look)
            continue
        if run:
            yield run
        run = [look] if held else []
    if run:
        yield run


def _place(value: Value) -> str:
    return f"{value.value} at {value.partition}:{value.offset}"


def _transaction(one: _Transaction) -> str:
    return f"transaction {one.number} of {one.process}"


_CHECKERS: Final[Mapping[Anomaly, Callable[[_Indexed], Iterator[str]]]] = {
    Anomaly.ABORTED_READ: _aborted_reads,
    Anomaly.PRECOMMITTED_READ: _precommitted_reads,
    Anomaly.LOSS: _lost_writes,
    Anomaly.TORN: _torn,
    Anomaly.DUPLICATE: _duplicates,
    Anomaly.INCONSISTENT_OFFSETS: _inconsistent_offsets,
    Anomaly.NONMONOTONIC_POLL: _nonmonotonic_polls,
    Anomaly.POLL_SKIP: _poll_skips,
    Anomaly.ZOMBIE_COMMIT: _zombie_commits,
}
