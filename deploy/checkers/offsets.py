"""Numbers by topic partition and offset, in compact arrays. Pure.

A run may hold millions of records, so what a checker remembers of one is a few bytes here and nothing else. Offsets
have gaps (transaction markers, aborted records): a cell that was never set holds its array's `empty`.
"""

from array import array
from collections.abc import Iterator

from shared.events.partitions import PARTITIONS, partition_for

NONE = -1
"""No coordinates, as a place."""

_GROWTH_MIN = 4096
_PARTITION_BITS = 8
_PARTITION_MASK = (1 << _PARTITION_BITS) - 1


def place(partition: int, offset: int) -> int:
    """Coordinates within one topic as one integer."""
    return offset << _PARTITION_BITS | partition


def partition_of(at: int) -> int:
    """The partition of a place."""
    return at & _PARTITION_MASK


def offset_of(at: int) -> int:
    """The offset of a place."""
    return at >> _PARTITION_BITS


def named(topic: str, at: int) -> str:
    """Format a place for people: `payments.raw:3:1207`."""
    return f"{topic}:{partition_of(at)}:{offset_of(at)}"


def parse_place(value: bytes | None, topic: bytes) -> int:
    """The place that a header names, if it is one of that topic; else NONE.

    Args:
        value: `topic:partition:offset`, or None.
        topic: the topic's name with its colon, `payments.raw:`.
    """
    if value is None or not value.startswith(topic):
        return NONE
    partition, _, offset = value[len(topic) :].partition(b":")
    if not (partition.isdigit() and offset.isdigit() and int(partition) < PARTITIONS):
        return NONE
    return place(int(partition), int(offset))


def home(account: str) -> int:
    """The partition that an account lives on; NONE for a house account that names no partition."""
    try:
        return partition_for(account)
    except ValueError:
        return NONE


class Cells:
    """One number for each place of a topic.

    Args:
        typecode: of `array`: B for flags and small counts, Q for fingerprints, q for places.
        empty: what a cell holds before it is set.
    """

    def __init__(self, typecode: str, empty: int = 0) -> None:
        self._empty = empty
        self._blank = array(typecode, [empty])
        self._parts = [array(typecode) for _ in range(PARTITIONS)]

    def __getitem__(self, at: int) -> int:
        # Here and below without partition_of and offset_of: an audit comes here twenty times for each payment
        part = self._parts[at & _PARTITION_MASK]
        offset = at >> _PARTITION_BITS
        return part[offset] if offset < len(part) else self._empty

    def __setitem__(self, at: int, value: int) -> None:
        part = self._parts[at & _PARTITION_MASK]
        offset = at >> _PARTITION_BITS
        if offset >= len(part):
            part.extend(self._blank * max(offset + 1 - len(part), len(part) // 8, _GROWTH_MIN))
        part[offset] = value

    def filled(self) -> Iterator[tuple[int, int]]:
        """Every cell that is not empty, as (place, value), in order within each partition."""
        for partition, part in enumerate(self._parts):
            empty = self._empty
            for offset, value in enumerate(part):
                if value != empty:
                    yield place(partition, offset), value
