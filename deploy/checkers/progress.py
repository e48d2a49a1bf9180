"""Progress of a service's changelog, compared with the committed offset and the outputs (I7). Pure.

One transaction writes all three, so they pass the same input records. Transaction markers lie between input records:
offsets alone may differ by them, and only records are compared.
"""

from collections.abc import Mapping

import msgspec

from deploy.checkers.findings import Findings, Kind
from deploy.checkers.offsets import named, offset_of, partition_of, place
from shared.eos.progress import NEXT_OFFSET_KEY, decode_next_offset
from shared.eos.records import Record


class Progress:
    """The next offset in one changelog, by partition.

    Attributes:
        topic: the changelog.
    """

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
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = named(self.topic, place(partition, record.offset))
            self._findings.add(Kind.UNREADABLE, where, str(error))

    def next_offset(self, partition: int) -> int:
        """The offset up to which a partition's changelog goes; 0 where it has none."""
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


def is_below(at: int, committed: Mapping[int, int]) -> bool:
    """Whether a record lies below the committed offset."""
    return offset_of(at) < committed.get(partition_of(at), 0)
