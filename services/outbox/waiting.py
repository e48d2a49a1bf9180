"""Effects that wait for another try: a store of one input partition, with what is due next. Pure.

Invariant: an ordered effect is due only when it is the first of its account and destination. `shared.eos.store` says
how a store takes part in transactions.
"""

import heapq
from collections.abc import Iterator

from shared.eos.store import Change
from shared.events.effects import WAITING_PREFIX, EffectRequest, Waiting, decode_waiting, encode_waiting

Chain = tuple[str, str]


class WaitingStore:
    """Waiting effects by id."""

    prefix = WAITING_PREFIX

    def __init__(self) -> None:
        self._committed: dict[str, Waiting] = {}
        self._changed: dict[str, Waiting | None] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._chains: dict[Chain, list[tuple[int, str]]] = {}
        self._taken: set[str] = set()

    def get(self, effect_id: str) -> Waiting | None:
        """The effect as the open transaction sees it, if it waits."""
        if effect_id in self._changed:
            return self._changed[effect_id]
        return self._committed.get(effect_id)

    def put(self, effect_id: str, waiting: Waiting) -> None:
        self._changed[effect_id] = waiting

    def remove(self, effect_id: str) -> None:
        if self.get(effect_id) is not None:
            self._changed[effect_id] = None

    def behind(self, request: EffectRequest) -> Waiting | None:
        """The committed effect that an ordered one must wait for: the last of its chain; None for none."""
        chain = _chain(request)
        members = None if chain is None else self._chains.get(chain)
        return self._committed[members[-1][1]] if members else None

    def due(self, now_ms: int, limit: int) -> list[Waiting]:
        """Take at most `limit` effects whose time has come, those of one chain one after the other.

        They count as taken until the transaction ends; those that it does not change are then due again.
        """
        found: dict[str, Waiting] = {}
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            not_before_ms, _, effect_id = heapq.heappop(self._heap)
            waiting = self._committed.get(effect_id)
            # An entry is stale when the effect is gone or waits for another time; one that is taken may have several
            if waiting is None or waiting.not_before_ms != not_before_ms or effect_id in self._taken:
                continue
            chain = _chain(waiting.request)
            # Others of the chain come back when they are the first
            if chain is None or self._chains[chain][0][1] == effect_id:
                found[effect_id] = waiting
        self._taken.update(found)
        return list(found.values())

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Merge one record of the changelog, in its order."""
        effect_id = key[len(self.prefix) :].decode()
        self._merge(effect_id, None if value is None else decode_waiting(value))

    def changes(self) -> Iterator[Change]:
        """The open transaction's changes, without effects that it both added and removed."""
        for effect_id, waiting in self._changed.items():
            if waiting is not None:
                yield self.prefix + effect_id.encode(), encode_waiting(waiting)
            elif effect_id in self._committed:
                yield self.prefix + effect_id.encode(), None

    def commit(self) -> None:
        for effect_id, waiting in self._changed.items():
            self._merge(effect_id, waiting)
        self.rollback()

    def rollback(self) -> None:
        self._changed.clear()
        for effect_id in self._taken:
            waiting = self._committed.get(effect_id)
            if waiting is not None:
                self._push(effect_id, waiting)
        self._taken.clear()

    def items(self) -> Iterator[tuple[str, Waiting]]:
        """Committed effects, in no promised order."""
        yield from self._committed.items()

    def __len__(self) -> int:
        return len(self._committed)

    def _merge(self, effect_id: str, waiting: Waiting | None) -> None:
        old = self._committed.pop(effect_id, None)
        if old is not None:
            self._unchain(effect_id, old)
        if waiting is None:
            return
        self._committed[effect_id] = waiting
        chain = _chain(waiting.request)
        if chain is not None:
            members = self._chains.setdefault(chain, [])
            members.append((waiting.sequence, effect_id))
            members.sort()
        self._push(effect_id, waiting)

    def _unchain(self, effect_id: str, waiting: Waiting) -> None:
        chain = _chain(waiting.request)
        if chain is None:
            return
        members = self._chains[chain]
        members.remove((waiting.sequence, effect_id))
        if not members:
            del self._chains[chain]
            return
        first = members[0][1]
        self._push(first, self._committed[first])

    def _push(self, effect_id: str, waiting: Waiting) -> None:
        heapq.heappush(self._heap, (waiting.not_before_ms, waiting.sequence, effect_id))


def _chain(request: EffectRequest) -> Chain | None:
    return (request.account, request.destination) if request.ordered else None
