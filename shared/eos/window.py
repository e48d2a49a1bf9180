"""A bounded memory of keys in order of arrival, as a store of one input partition (`shared.eos.store`). Pure."""

from array import array
from collections.abc import Iterator

from shared.eos.store import Change


class Window:
    """The last `capacity` entries by arrival, found by a key of 16 bytes: memory use has a fixed bound.

    Age counts in entries, not in time, and does not depend on how records are grouped into transactions, so a replay
    decides the same way. The changelog's key is prefix and sequence number; its value is key and payload. Eviction
    writes a tombstone.

    The committed entries are a ring: an entry's place is its sequence number modulo the capacity.
    """

    KEY_BYTES = 16
    TOMBSTONES_MAX = 10_000
    """Evictions in one transaction beyond its additions; only a lowered capacity leaves so many."""

    def __init__(self, prefix: bytes, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a window holds at least one entry")
        self.prefix = prefix
        self.capacity = capacity
        self._ring = [b""] * capacity
        self._index = _LapIndex(capacity)
        self._size = 0
        self._written_from = 0  # every older entry has a tombstone in the changelog
        self._committed_next = 0
        self._next = 0
        self._added: dict[bytes, int] = {}
        self._changed: dict[int, bytes] = {}
        self._renewed: list[int] = []  # former sequence numbers, whose places have older entries or none

    def get(self, key: bytes) -> bytes | None:
        """Return the payload of a key that is within the window, or None."""
        sequence = self._find(key)
        if sequence is None:
            return None
        entry = self._changed.get(sequence) or self._ring[sequence % self.capacity]
        return entry[self.KEY_BYTES :]

    def _find(self, key: bytes) -> int | None:
        """Return the sequence number of a key within the window as the open transaction sees it."""
        sequence = self._added.get(key)
        if sequence is None:
            place = self._index.find(key, self._ring)
            if place < 0:
                return None
            sequence = self._sequence_at(place)
        return sequence if sequence >= self._next - self.capacity else None

    def _sequence_at(self, place: int) -> int:
        """Return the sequence number of a committed entry from its place: the last one that falls there."""
        last = self._committed_next - 1
        return last - (last - place) % self.capacity

    def put(self, key: bytes, payload: bytes) -> None:
        """Set a key's payload: within the window it keeps its age; else it becomes the youngest entry."""
        if len(key) != self.KEY_BYTES:
            raise ValueError("a window's key is 16 bytes long")
        sequence = self._find(key)
        if sequence is None:
            self._add(key, payload)
        else:
            self._changed[sequence] = key + payload

    def renew(self, key: bytes, payload: bytes) -> None:
        """Make a key the youngest entry, also if it is within the window. Its former place stays empty."""
        sequence = self._find(key)
        if sequence is not None:
            self._added.pop(key, None)
            self._changed.pop(sequence, None)
            self._renewed.append(sequence)
        self._add(key, payload)

    def _add(self, key: bytes, payload: bytes) -> None:
        self._added[key] = self._next
        self._changed[self._next] = key + payload
        self._next += 1

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one record of the changelog, in its order; a key of another form raises ValueError."""
        sequence = int(key[len(self.prefix) :])
        first = self._committed_next == 0
        self._reach(sequence)
        if value is None:
            self._written_from = max(self._written_from, sequence + 1)
            if sequence >= self._next - self.capacity:
                self._clear(sequence % self.capacity)
            return
        self._written_from = sequence if first else min(self._written_from, sequence)
        if sequence >= self._next - self.capacity:
            self._restore_entry(sequence, bytes(value))

    def _reach(self, sequence: int) -> None:
        """Advance to a restored sequence number. Those skipped come later, if replaced, or were never written."""
        for passed in range(max(self._committed_next, sequence + 1 - self.capacity), sequence + 1):
            self._clear(passed % self.capacity)
        self._next = self._committed_next = max(self._committed_next, sequence + 1)

    def _restore_entry(self, sequence: int, entry: bytes) -> None:
        known = self._index.find(entry[: self.KEY_BYTES], self._ring)
        if known >= 0 and known != sequence % self.capacity:
            # Renewed, or added again under a capacity that was lower for a while: the newer one counts
            if self._sequence_at(known) > sequence:
                return
            self._clear(known)
        self._put(sequence, entry)

    @property
    def excess(self) -> int:
        """How many of the changelog's entries may be beyond the capacity: a larger one wrote them.

        They remain after a capacity was lowered, until `changes` has deleted them. Entries count that were never
        written, as their own transaction evicted them.
        """
        return max(self._committed_next - self.capacity - self._written_from, 0)

    def changes(self) -> Iterator[Change]:
        """Yield entries added or replaced, then evictions."""
        oldest = self._next - self.capacity
        for sequence, entry in self._changed.items():
            if sequence >= oldest:
                yield self._store_key(sequence), entry
        for sequence in self._evicted():
            yield self._store_key(sequence), None

    def _evicted(self) -> range:
        """The written entries that the open transaction evicts, oldest first."""
        added = self._next - self._committed_next
        if not added:
            return range(0)
        until = min(self._next - self.capacity, self._committed_next)
        return range(self._written_from, min(until, self._written_from + added + self.TOMBSTONES_MAX))

    def commit(self) -> None:
        oldest = self._next - self.capacity
        self._written_from = max(self._written_from, self._evicted().stop)
        if self._written_from >= self._committed_next:
            # What one transaction both adds and evicts is never written
            self._written_from = max(self._written_from, oldest)
        for sequence in self._renewed:
            self._clear(sequence % self.capacity)
        for sequence, entry in self._changed.items():
            if sequence >= oldest:
                self._put(sequence, entry)
        self._committed_next = self._next
        self._settle()

    def rollback(self) -> None:
        self._next = self._committed_next
        self._settle()

    def _settle(self) -> None:
        self._added.clear()
        self._changed.clear()
        self._renewed.clear()

    def _put(self, sequence: int, entry: bytes) -> None:
        lap, place = divmod(sequence, self.capacity)
        if not self._ring[place]:
            self._size += 1
        self._ring[place] = entry
        self._index.put(entry[: self.KEY_BYTES], place, lap)

    def _clear(self, place: int) -> None:
        if self._ring[place]:
            self._size -= 1
            self._ring[place] = b""

    def _store_key(self, sequence: int) -> bytes:
        return b"%b%d" % (self.prefix, sequence)

    def __len__(self) -> int:
        return self._size


class _LapIndex:
    """Finds a key's place in a ring: one hash table for the current lap around the ring, one for the last lap.

    A place that has been overwritten holds another key, which the probe detects, so nothing is ever deleted. A table is
    dropped as a whole when its lap is over. With 4 bytes for a place and tables at most half full an entry takes 16 to
    32 bytes. A dict takes over 100: it grows when entries come and go, and holds the key a second time.
    """

    def __init__(self, capacity: int) -> None:
        self._slots = 1 << (2 * capacity - 1).bit_length()
        self._mask = self._slots - 1
        self._lap = 0
        self._running = self._empty()
        self._last = self._empty()

    def _empty(self) -> "array[int]":
        return array("I", bytes(self._slots * array("I").itemsize))

    def find(self, key: bytes, ring: list[bytes]) -> int:
        """The place whose entry begins with the key, or -1."""
        mask = self._mask
        # Python's own hash is keyed at random in each process: no sender can make keys collide
        start = hash(key) & mask
        for table in (self._running, self._last):
            slot = start
            while place := table[slot]:
                if ring[place - 1].startswith(key):
                    return place - 1
                slot = (slot + 1) & mask
        return -1

    def put(self, key: bytes, place: int, lap: int) -> None:
        """Map a key to a place. A lap is the current one, the last one, or a later one, which ends them."""
        if lap > self._lap:
            self._last = self._running if lap == self._lap + 1 else self._empty()
            self._running = self._empty()
            self._lap = lap
        table = self._running if lap == self._lap else self._last
        slot = hash(key) & self._mask
        while (taken := table[slot]) and taken != place + 1:
            slot = (slot + 1) & self._mask
        table[slot] = place + 1
