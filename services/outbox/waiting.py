"""Effects that wait for a try: a store of one input partition, by lane, with what is due next. Pure.

Invariants:
- An ordered effect is due only when it is the first of its account and destination.
- The effects of a lane are due in the order of their times, and a lane that may not be called holds up no other. Lanes
  take turns.
- What only waits is not written again: time that a lane lets pass, or a claim that led to no call, changes nothing
  here. So each effect has one record when it begins to wait, and one for each call.

`shared.eos.store` says how a store takes part in transactions.
"""

import heapq
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from services.outbox.lanes import FULL, Admission, lane_name
from shared.eos.store import Change
from shared.events.effects import WAITING_PREFIX, EffectRequest, Waiting, decode_waiting, encode_waiting

Chain = tuple[str, str]
Admit = Callable[[str, Waiting], Admission]


class _Kept(NamedTuple):
    """A committed effect: encoded, it takes a good half of the memory that it takes decoded."""

    value: bytes
    lane: str
    chain: Chain | None
    not_before_ms: int
    sequence: int


class WaitingStore:
    """Waiting effects by id."""

    prefix = WAITING_PREFIX

    def __init__(self) -> None:
        self._committed: dict[str, _Kept] = {}
        self._changed: dict[str, _Kept | None] = {}
        self._heaps: dict[str, list[tuple[int, int, str]]] = {}  # by lane: time, sequence, id
        self._times: list[tuple[int, str]] = []  # when to ask a lane
        self._full: dict[str, None] = {}  # lanes to ask each time
        self._chains: dict[Chain, list[tuple[int, str]]] = {}
        self._taken: set[str] = set()
        self._later_ms: dict[str, int] = {}  # by id, for effects that wait longer than was committed
        self.counts: Counter[str] = Counter()
        """Committed effects by lane."""

    def get(self, effect_id: str) -> Waiting | None:
        """The effect as the open transaction sees it, if it waits."""
        kept = self._changed[effect_id] if effect_id in self._changed else self._committed.get(effect_id)
        return None if kept is None else decode_waiting(kept.value)

    def __contains__(self, effect_id: str) -> bool:
        return effect_id in self._committed if effect_id not in self._changed else self._changed[effect_id] is not None

    def put(self, effect_id: str, waiting: Waiting) -> None:
        self._changed[effect_id] = self._kept(waiting, encode_waiting(waiting))

    def remove(self, effect_id: str) -> None:
        if effect_id in self:
            self._changed[effect_id] = None

    def has_chain(self, chain: Chain) -> bool:
        """Whether a committed effect of this account and destination waits."""
        return chain in self._chains

    def is_due(self, lane: str, now_ms: int) -> bool:
        """Whether an effect of this lane is due that `due` did not give."""
        head = self._head(lane)
        return head is not None and head[0] <= now_ms

    def due(self, now_ms: int, limit: int, admit: Admit) -> list[tuple[Waiting, Admission]]:
        """Take at most `limit` effects whose time has come and that `admit` lets pass, one of each lane in turn.

        They stay taken until their change is committed, or `give_back`.
        """
        found: list[tuple[Waiting, Admission]] = []
        turn = deque(self._full)
        self._full.clear()
        while self._times and self._times[0][0] <= now_ms:
            turn.append(heapq.heappop(self._times)[1])
        turn = deque(dict.fromkeys(turn))
        while turn and len(found) < limit:
            lane = turn.popleft()
            head = self._head(lane)
            if head is None:
                continue
            not_before_ms, _, effect_id = head
            if not_before_ms > now_ms:
                heapq.heappush(self._times, (not_before_ms, lane))
                continue
            waiting = decode_waiting(self._committed[effect_id].value)
            admission = admit(lane, waiting)
            if admission.wait_s == FULL:
                self._full[lane] = None
            elif admission.wait_s > 0:
                heapq.heappush(self._times, (now_ms + int(admission.wait_s * 1000) + 1, lane))
            else:
                heapq.heappop(self._heaps[lane])
                self._taken.add(effect_id)
                found.append((waiting, admission))
                turn.append(lane)
        self._full.update(dict.fromkeys(turn))
        return found

    def give_back(self, effect_id: str, not_before_ms: int = 0) -> None:
        """An effect that was taken was not called: it is due as before, or from `not_before_ms` on."""
        self._taken.discard(effect_id)
        kept = self._committed.get(effect_id)
        if kept is not None:
            if not_before_ms > kept.not_before_ms:
                self._later_ms[effect_id] = not_before_ms
            self._push(effect_id, kept)

    def take(self, effect_id: str) -> None:
        """Take an effect that is called already, whatever its time."""
        self._taken.add(effect_id)

    def first(self, due_ms: int, limit: int) -> frozenset[str]:
        """The first of each lane of those that were due at `due_ms`, all of them if `limit` is 0.

        An owner takes the effects of a lane in this order, and what it claimed as a request comes before them all. So
        those that it claimed, and that are still here, are among as many of the first as it may have claimed at once.
        """
        lanes: dict[str, list[tuple[int, int, str]]] = {}
        for effect_id, kept in self._committed.items():
            if kept.not_before_ms <= due_ms and self._is_first(effect_id, kept):
                lanes.setdefault(kept.lane, []).append((kept.not_before_ms, kept.sequence, effect_id))
        return frozenset(
            effect_id for found in lanes.values() for *_, effect_id in sorted(found)[: limit or len(found)]
        )

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Merge one record of the changelog, in its order."""
        effect_id = key[len(self.prefix) :].decode()
        self._merge(effect_id, None if value is None else self._kept(decode_waiting(value), value))

    def changes(self) -> Iterator[Change]:
        """The open transaction's changes, without effects that it both added and removed."""
        for effect_id, kept in self._changed.items():
            if kept is not None:
                yield self.prefix + effect_id.encode(), kept.value
            elif effect_id in self._committed:
                yield self.prefix + effect_id.encode(), None

    def commit(self) -> None:
        for effect_id, kept in self._changed.items():
            self._taken.discard(effect_id)
            self._later_ms.pop(effect_id, None)
            self._merge(effect_id, kept)
        self._changed.clear()

    def rollback(self) -> None:
        self._changed.clear()

    def items(self) -> Iterator[tuple[str, Waiting]]:
        """Committed effects, in no promised order."""
        for effect_id, kept in self._committed.items():
            yield effect_id, decode_waiting(kept.value)

    def __len__(self) -> int:
        return len(self._committed)

    def _kept(self, waiting: Waiting, value: bytes) -> _Kept:
        lane = lane_name(waiting.request.destination)
        # What is under way comes first, wherever its lane has a backlog: see `first`
        time_ms = 0 if waiting.under_way else waiting.not_before_ms
        return _Kept(value, lane, chain_of(waiting.request), time_ms, waiting.sequence)

    def _merge(self, effect_id: str, kept: _Kept | None) -> None:
        old = self._committed.pop(effect_id, None)
        if old is not None:
            self.counts[old.lane] -= 1
            if not self.counts[old.lane]:
                del self.counts[old.lane]
            self._unchain(effect_id, old)
        if kept is None:
            return
        self._committed[effect_id] = kept
        self.counts[kept.lane] += 1
        if kept.chain is not None:
            insort(self._chains.setdefault(kept.chain, []), (kept.sequence, effect_id))
        self._push(effect_id, kept)

    def _unchain(self, effect_id: str, kept: _Kept) -> None:
        if kept.chain is None:
            return
        members = self._chains[kept.chain]
        members.remove((kept.sequence, effect_id))
        if not members:
            del self._chains[kept.chain]
            return
        first = members[0][1]
        self._push(first, self._committed[first])

    def _is_first(self, effect_id: str, kept: _Kept) -> bool:
        return kept.chain is None or self._chains[kept.chain][0][1] == effect_id

    def _push(self, effect_id: str, kept: _Kept) -> None:
        heap = self._heaps.setdefault(kept.lane, [])
        entry = self._later_ms.get(effect_id, kept.not_before_ms), kept.sequence, effect_id
        heapq.heappush(heap, entry)
        if heap[0] == entry:
            heapq.heappush(self._times, (entry[0], kept.lane))

    def _head(self, lane: str) -> tuple[int, int, str] | None:
        """The first entry of a lane that is no leftover."""
        heap = self._heaps.get(lane)
        while heap:
            not_before_ms, _, effect_id = heap[0]
            kept = self._committed.get(effect_id)
            # Leftovers are of effects that are gone, taken, or wait for another time; of a chain, the first counts, and
            # the others come back when they are it
            if (
                kept is not None
                and effect_id not in self._taken
                and self._later_ms.get(effect_id, kept.not_before_ms) == not_before_ms
                and self._is_first(effect_id, kept)
            ):
                return heap[0]
            heapq.heappop(heap)
        self._heaps.pop(lane, None)
        return None


def chain_of(request: EffectRequest) -> Chain | None:
    """What a request keeps its order in; None where no order is asked for."""
    return (request.account, request.destination) if request.ordered else None
