"""Numbers by topic partition and offset, in compact arrays. Pure.

A run may hold millions of records, so what a checker remembers of one is a few bytes here and nothing else. Offsets
have gaps (transaction markers, aborted records): a cell that was never set holds its array's `empty`.

`Progress` compares a service's changelog with the committed offset and the outputs (I7). One transaction writes all
three, so they pass the same input records. Offsets alone may differ by transaction markers: only records are compared.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from deploy.checkers.verdict import Findings, Kind
from shared.eos.progress import NEXT_OFFSET_KEY, decode_next_offset
from shared.eos.records import Record
from shared.events.partitions import PARTITIONS_MAX, partition_for

NONE = -1  # no coordinates, as a place

T = TypeVar("T")
_GROWTH_MIN = 4096
_PARTITION_BITS = (PARTITIONS_MAX - 1).bit_length()
_PARTITION_MASK = (1 << _PARTITION_BITS) - 1
_OFFSETS_MAX = 1 << (63 - _PARTITION_BITS)  # places fit into signed 64 bits
_DIGITS_MAX = 40  # more than such coordinates have


def place(partition: int, offset: int) -> int:
    """Return coordinates within one topic as one integer."""
    return offset << _PARTITION_BITS | partition


def partition_of(at: int) -> int:
    return at & _PARTITION_MASK


def offset_of(at: int) -> int:
    return at >> _PARTITION_BITS


def named(topic: str, at: int) -> str:
    """Format a place for people: `payments.raw:3:1207`."""
    return f"{topic}:{partition_of(at)}:{offset_of(at)}"


def parse_place(value: bytes | None, topic: bytes) -> int:
    """Return the place that a header `topic:partition:offset` names, if it is one of that topic; else NONE.

    `topic` is the topic's name with its colon, `payments.raw:`.
    """
    if value is None or not value.startswith(topic):
        return NONE
    partition, _, offset = value[len(topic) :].partition(b":")
    if not (partition.isdigit() and offset.isdigit()) or len(partition) + len(offset) > _DIGITS_MAX:
        return NONE
    if int(partition) >= PARTITIONS_MAX or int(offset) >= _OFFSETS_MAX:
        return NONE
    return place(int(partition), int(offset))


def home(account: str, partitions: int) -> int:
    """Return the partition that an account lives on; NONE for a house account that names no partition."""
    try:
        return partition_for(account, partitions)
    except ValueError:
        return NONE


def readable(
    findings: Findings, topic: str, partition: int, records: list[Record], decode: Callable[[bytes], T]
) -> Iterator[tuple[Record, int, str, T]]:
    """Decode records; yield each with its place, the place for people, and the event. Report those that fail."""
    for record in records:
        at = place(partition, record.offset)
        where = named(topic, at)
        try:
            event = decode(record.value or b"")
        except msgspec.DecodeError as error:
            findings.add(Kind.UNREADABLE, where, str(error))
        else:
            yield record, at, where, event


class Cells:
    """One number for each place of a topic; `empty` before it is set.

    The typecode is that of `array`: B for flags and small counts, Q for fingerprints, q for places.
    """

    def __init__(self, typecode: str, empty: int = 0) -> None:
        self._empty = empty
        self._blank = array(typecode, [empty])
        self._parts = [array(typecode) for _ in range(PARTITIONS_MAX)]

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
        """Yield every cell that is not empty, as (place, value), in order within each partition."""
        for partition, part in enumerate(self._parts):
            empty = self._empty
            for offset, value in enumerate(part):
                if value != empty:
                    yield place(partition, offset), value


class Expiry:
    """How far effect requests have expired: they are written in the order of their sources, but for repaired ones."""

    def __init__(self) -> None:
        self._first_sources: dict[int, int] = {}  # by partition, of its first request

    def note(self, source: int, *, repaired: bool) -> None:
        """Note the source of a request, its place in ledger.transfers. Requests of a partition come in their order."""
        if not repaired:
            self._first_sources.setdefault(partition_of(source), offset_of(source))

    def may_include(self, source: int, beginnings: Mapping[int, int]) -> bool:
        """Whether requests of this source may have expired.

        Args:
            source: its place in ledger.transfers.
            beginnings: the first offset of each partition of effects.requests that is still there.
        """
        partition, offset = partition_of(source), offset_of(source)
        return bool(beginnings.get(partition, 0)) and offset <= self._first_sources.get(partition, offset)


class Progress:
    """The next offset in a changelog, by partition."""

    def __init__(self, findings: Findings, topic: str) -> None:
        self._findings = findings
        self.topic = topic
        self._next_offsets: dict[int, int] = {}

    def feed(self, partition: int, records: list[Record]) -> None:
        """Take records of the changelog. All but the next offset is the service's own."""
        for record in records:
            if record.key == NEXT_OFFSET_KEY:
                self.feed_one(partition, record)

    def feed_one(self, partition: int, record: Record) -> None:
        """Take a record whose key is the next offset's."""
        try:
            self._next_offsets[partition] = decode_next_offset(record.value or b"").next_offset
        except msgspec.DecodeError as error:
            where = named(self.topic, place(partition, record.offset))
            self._findings.add(Kind.UNREADABLE, where, str(error))

    def next_offset(self, partition: int) -> int:
        """Return the offset up to which a partition's changelog goes; 0 where it has none."""
        return self._next_offsets.get(partition, 0)

    def passes(self, at: int) -> bool:
        """Whether the changelog goes beyond a record of the service's input."""
        return offset_of(at) < self.next_offset(partition_of(at))


def check_consumed(findings: Findings, topic: str, at: int, has_output: bool, committed: Mapping[int, int]) -> None:
    """Check I7 for one input record: it has outputs if and only if it lies below its reader's committed offset."""
    below = is_below(at, committed)
    if below and not has_output:
        findings.add(Kind.SKIPPED, named(topic, at), "below the committed offset, yet without outputs")
    elif has_output and not below:
        findings.add(Kind.AHEAD, named(topic, at), "has outputs, yet its offset was not committed")


def check_changelog(findings: Findings, topic: str, at: int, changelog: Progress, committed: Mapping[int, int]) -> None:
    """Check I7 for one input record: the changelog goes beyond it if and only if the committed offset does."""
    below, passes = is_below(at, committed), changelog.passes(at)
    if below == passes:
        return
    behind = f"and {changelog.topic} goes to {changelog.next_offset(partition_of(at))} only"
    ahead = f"is not committed, yet {changelog.topic} goes beyond it"
    findings.add(Kind.TORN_CHANGELOG, named(topic, at), f"its offset {ahead if passes else f'is committed, {behind}'}")


def came_before(first: int, later: int, *, repaired: bool) -> bool:
    """Whether a record of payments.raw can be the first one of another record's identity, by their places.

    A repair finds a payment accepted that was sent again after its first record was lost: its first one is later.
    """
    if partition_of(first) != partition_of(later):
        return False
    return first < later or (repaired and first != later)


def is_below(at: int, committed: Mapping[int, int]) -> bool:
    return offset_of(at) < committed.get(partition_of(at), 0)
