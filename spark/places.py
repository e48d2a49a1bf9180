"""Coordinates as one number, and what a manifest says of them, as SQL expressions.

A join on one BIGINT sorts several times faster than one on two columns. What holds: two places of one topic never get
the same number, and a record whose source cannot be gets a negative one of its own, which joins with nothing.
"""

from collections.abc import Mapping
from typing import Final

from spark.manifest import Manifest, Range

PARTITION_BITS: Final = 10
"""Up to 1,024 partitions and offsets below 2^53."""
_MASK = (1 << PARTITION_BITS) - 1

NO_LONG: Final = "cast(null as bigint)"


def place(partition: str, offset: str) -> str:
    """Coordinates within one topic as a BIGINT; null where one of them is."""
    return f"(shiftleft({offset}, {PARTITION_BITS}) | {partition})"


PLACE: Final = place("partition", "offset")
"""A record's own place."""


def partition_of(at: str) -> str:
    """The partition of a place."""
    return f"cast({at} & {_MASK} as int)"


def offset_of(at: str) -> str:
    """The offset of a place."""
    return f"shiftright({at}, {PARTITION_BITS})"


def named(topic: str, at: str) -> str:
    """A place for people: `payments.raw:3:1207`.

    Args:
        topic: its name, no expression.
        at: the place.
    """
    return f"concat('{topic}:', {partition_of(at)}, ':', {offset_of(at)})"


def by_partition(partition: str, values: Mapping[int, int]) -> str:
    """A number for each partition; null for one that is not there."""
    if not values:
        return NO_LONG
    cases = " ".join(f"when {number} then {value}L" for number, value in sorted(values.items()))
    return f"(case {partition} {cases} end)"


class Log:
    """The ranges of one topic.

    Args:
        manifest: of the run.
        topic: of the catalogue.
    """

    def __init__(self, manifest: Manifest, topic: str) -> None:
        self.topic = topic
        self._ranges: Mapping[int, Range] = manifest.topics[topic]

    @property
    def partitions(self) -> tuple[int, ...]:
        """All of the topic."""
        return tuple(sorted(self._ranges))

    @property
    def unstable(self) -> frozenset[int]:
        """Partitions in which records may stand beyond the cut that are siblings of records in it."""
        return frozenset(number for number, offsets in self._ranges.items() if not offsets.stable)

    def start(self, partition: str) -> str:
        """The first offset of the run."""
        return by_partition(partition, {number: offsets.start for number, offsets in self._ranges.items()})

    def end(self, partition: str) -> str:
        """The offset after the last of the cut."""
        return by_partition(partition, {number: offsets.end for number, offsets in self._ranges.items()})

    def high(self, partition: str) -> str:
        """The high watermark."""
        return by_partition(partition, {number: offsets.high for number, offsets in self._ranges.items()})

    def beginning(self, partition: str) -> str:
        """Where the log began."""
        return by_partition(partition, {number: offsets.beginning for number, offsets in self._ranges.items()})

    def source(self) -> str:
        """The place that a record names as its source, if a record of this topic can stand there; else null."""
        can_be = f"source_topic = '{self.topic}' and source_offset between 0 and {self.high('source_partition')} - 1"
        return f"if({can_be}, {place('source_partition', 'source_offset')}, {NO_LONG})"

    def source_or_own(self) -> str:
        """The same; where there is none, a negative number that no other record of the table has."""
        return f"coalesce({self.source()}, -1 - {place('partition', 'offset')})"
