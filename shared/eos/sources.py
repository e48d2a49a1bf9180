"""The second line against repeats: the last source of each upstream partition that a receiver has processed. Pure.

An upstream partition has one owner at a time, which processes it in order. Transactions keep that order in every
partition that it writes to. Within one input partition the sources of one upstream partition therefore only ascend. A
source at or below the last one was processed already, so its record is a repeat.

Invariant: a record is admitted once. `once repair` writes records out of order. A header admits those, also once.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from shared.events.headers import REPAIR, SOURCE

_NO_OFFSET: Final = -1
_ONE_PART: Final = frozenset({""})


class SeenSources(msgspec.Struct, frozen=True, omit_defaults=True):
    """A receiver's record of its sources, as stored in its state."""

    last: dict[str, int] = {}  # the last source's offset by `topic:partition`
    parts: dict[str, list[str]] = {}  # the parts of that last source, where several records are made from one
    repairs: dict[str, int] = {}  # the last number by repair id


class Sources:
    """The sources of one input partition's records.

    Like a store: what a transaction admits is dropped by `rollback` and kept by `commit`.
    """

    def __init__(self, seen: SeenSources | None = None) -> None:
        self.restore(seen or SeenSources())

    def restore(self, seen: SeenSources) -> None:
        """Replace the committed state and drop the open transaction's."""
        self._last = {place.encode(): offset for place, offset in seen.last.items()}
        self._parts = {place.encode(): frozenset(parts) for place, parts in seen.parts.items()}
        self._repairs = dict(seen.repairs)
        self._committed = seen
        self._dirty = False

    def admit(self, headers: Iterable[tuple[str, bytes]], part: str = "") -> bool:
        """Note a record's source; return False for a repeat: its source was processed before.

        A record without a valid source is not a repeat: whether it is valid is not decided here. `part` distinguishes
        records that are made from one source; it is empty where there is at most one.
        """
        source = repair = None
        for name, value in headers:
            if name == SOURCE:
                source = value
            elif name == REPAIR:
                repair = value
        if repair is not None:
            return self._admit_repair(repair)
        if source is None:
            return True
        place, _, digits = source.rpartition(b":")
        if not digits.isdigit():
            return True
        offset = int(digits)
        last = self._last.get(place, _NO_OFFSET)
        if offset > last:
            self._last[place] = offset
            if part:
                self._parts[place] = frozenset((part,))
            else:
                self._parts.pop(place, None)
            self._dirty = True
            return True
        known = self._parts.get(place, _ONE_PART)
        if offset < last or part in known:
            return False
        self._parts[place] = known | {part}
        self._dirty = True
        return True

    def _admit_repair(self, repair: bytes) -> bool:
        repair_id, _, digits = repair.decode(errors="replace").rpartition(":")
        if not digits.isdigit() or int(digits) <= self._repairs.get(repair_id, _NO_OFFSET):
            return False
        self._repairs[repair_id] = int(digits)
        self._dirty = True
        return True

    def seen(self) -> SeenSources:
        """Return the state as the open transaction sees it."""
        if not self._dirty:
            return self._committed
        return SeenSources(
            {place.decode(): offset for place, offset in self._last.items()},
            {place.decode(): sorted(parts) for place, parts in self._parts.items()},
            dict(self._repairs),
        )

    def commit(self) -> None:
        self._committed, self._dirty = self.seen(), False

    def rollback(self) -> None:
        if self._dirty:
            self.restore(self._committed)
