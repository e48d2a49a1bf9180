"""Coordinates as one number, how far a cut shows each partition's work of the ledger, and where an account lives.

A join on one BIGINT sorts several times faster than one on two columns.

The ledger handles the records of one partition of `ledger.transfers` in order, in transactions that follow one another
(`shared/kafka/runtime/scope.py`). A transaction writes to the same partition of `ledger.postings` and
`ledger.balances`. A posting's source is the record it was made from; a changelog record's source is the last record
that its transaction handled. So both are in the order of their sources, and a cut shows a first part of the
transactions, whole ones only (KIP-98). The part may differ between the topics: their ends are pinned one after the
other, and a transaction's end reaches the partitions one after the other. Hence, by source offset:

- Where a topic's partition is stable, every record with a visible sibling is visible.
- Elsewhere, all records up to the largest visible source are visible. Later ones may be above the end.

Invariant: two places of one topic never get the same number. A record whose source cannot exist gets a negative one of
its own, which joins with nothing.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from shared.events.catalogue import LEDGER_TRANSFERS
from spark.manifest import INPUTS, Manifest, Range
from spark.night import NO_LONG, Night, by_partition, union

PARTITION_BITS: Final = 10
"""Up to 1,024 partitions and offsets below 2^53."""
_MASK = (1 << PARTITION_BITS) - 1


def place(partition: str, offset: str) -> str:
    """Return coordinates within one topic as a BIGINT; null where one of them is."""
    return f"(shiftleft({offset}, {PARTITION_BITS}) | {partition})"


PLACE: Final = place("partition", "offset")  # a record's own


def partition_of(at: str) -> str:
    return f"cast({at} & {_MASK} as int)"


def offset_of(at: str) -> str:
    return f"shiftright({at}, {PARTITION_BITS})"


def named(topic: str, at: str) -> str:
    """Return a place for people: `payments.raw:3:1207`. The topic is a name, not an expression."""
    return f"concat('{topic}:', {partition_of(at)}, ':', {offset_of(at)})"


class Log:
    """The ranges of one topic in a manifest, as expressions."""

    def __init__(self, manifest: Manifest, topic: str) -> None:
        self.topic = topic
        self._ranges: Mapping[int, Range] = manifest.topics[topic]

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self._ranges))

    @property
    def unstable(self) -> frozenset[int]:
        """Partitions in which records beyond the cut may be siblings of records in it."""
        return frozenset(number for number, offsets in self._ranges.items() if not offsets.stable)

    def start(self, partition: str) -> str:
        """Return the first offset of the run."""
        return by_partition(partition, {number: offsets.start for number, offsets in self._ranges.items()})

    def end(self, partition: str) -> str:
        """Return the offset after the last of the cut."""
        return by_partition(partition, {number: offsets.end for number, offsets in self._ranges.items()})

    def high(self, partition: str) -> str:
        """Return the high watermark."""
        return by_partition(partition, {number: offsets.high for number, offsets in self._ranges.items()})

    def beginning(self, partition: str) -> str:
        """Return the offset at which the log began."""
        return by_partition(partition, {number: offsets.beginning for number, offsets in self._ranges.items()})

    def source(self) -> str:
        """Return the place that a record names as its source, if this topic can have a record there; else null."""
        can_be = f"source_topic = '{self.topic}' and source_offset between 0 and {self.high('source_partition')} - 1"
        return f"if({can_be}, {place('source_partition', 'source_offset')}, {NO_LONG})"

    def source_or_own(self) -> str:
        """Return the same; where there is none, a negative number that no other record of the table has."""
        return f"coalesce({self.source()}, -1 - {place('partition', 'offset')})"


UNBOUNDED: Final = 2**63 - 1  # above every offset: a stable partition shows all
VISIBLE: Final = StructType([StructField("partition", IntegerType()), StructField("source_offset", LongType())])
"""The last source that is visible, by partition. Carried as `postings_reach`."""
POSTED: Final = ("postings", "declines", "accounts_opened", "accounts_closed")  # the tables of `ledger.postings`


def posted(night: Night) -> DataFrame:
    """Return partition, source_offset: of this run's postings, declines and account events with a possible source."""
    return union([night.new(table).where(sourced(night)).select("partition", "source_offset") for table in POSTED])


def unstable(night: Night, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic that may have more above their end."""
    return tuple(sorted(Log(night.manifest, topic).unstable))


def visible_up_to(night: Night, topic: str, seen: Mapping[int, int]) -> dict[int, int]:
    """Return up to which source offset a topic shows everything, for the partitions where that is bounded.

    Args:
        topic: one that the ledger writes.
        seen: the largest visible source by partition; a partition without any is unknown.
    """
    return {partition: seen.get(partition, -1) for partition in unstable(night, topic)}


def consumed(night: Night, seen: Mapping[int, int]) -> dict[int, int]:
    """Return by partition the last transfer whose outcome must be visible; -1 for none.

    The ledger's group has committed it, or it is in `posted`'s `seen` beyond that. Where the postings are not stable,
    only `seen` counts.
    """
    group = night.manifest.committed("ledger")
    shown = {p: max(group.get(p, 0) - 1, seen.get(p, -1)) for p in night.manifest.topics[LEDGER_TRANSFERS]}
    return {**shown, **visible_up_to(night, "ledger.postings", seen)}


def sourced(night: Night) -> Column:
    """Whether a row's source is a record of the same partition of `ledger.transfers` that can have existed."""
    there = F.col("source_offset") < bound(
        {partition: range_.high for partition, range_ in night.manifest.topics[LEDGER_TRANSFERS].items()}, otherwise=0
    )
    same = (F.col("source_topic") == INPUTS["ledger"]) & (F.col("source_partition") == F.col("partition"))
    return F.coalesce(same & there & (F.col("source_offset") >= 0), F.lit(False))


def bound(bounds: Mapping[int, int], partition: str = "partition", *, otherwise: int = UNBOUNDED) -> Column:
    """Return a row's bound by its partition, the name of a column; `otherwise` where there is none."""
    return F.expr(f"coalesce({by_partition(partition, bounds)}, {otherwise}L)")


_LOW_32_BITS: Final = 0xFFFFFFFF
_MURMUR_M: Final = 0x5BD1E995
_MURMUR_SEED: Final = 0x9747B28C


def _times_m(number: str) -> str:
    """Multiply 32 bits by 31 bits, which fits into a BIGINT, and keep 32 bits."""
    return f"((({number}) * {_MURMUR_M}L) & {_LOW_32_BITS}L)"


def _little_endian(start: str, length: int) -> str:
    """Return up to 4 bytes of `digits`, hexadecimal, as a number; `start` counts bytes from 0."""
    parts = ", ".join(f"substr(digits, 2 * ({start} + {index}) + 1, 2)" for index in reversed(range(length)))
    return f"cast(conv(concat({parts}), 16, 10) as bigint)"


def home(account: str, partitions: int) -> str:
    """Return the partition of an account, an expression; null for a house account that names none.

    Kafka's murmur2 for clients, the number in its name for the house. It takes about 10 µs, so callers evaluate it once
    for an account, or for few rows.
    """
    mixed = _times_m("number")
    whole = f"""aggregate(
        if(size >= 4, sequence(0, size div 4 - 1), slice(array(0), 1, 0)),
        {_MURMUR_SEED}L ^ cast(size as bigint),
        (h, i) -> {_times_m("h")} ^ get(transform(array({_little_endian("4 * i", 4)}), number -> get(transform(
            array({mixed}), k -> {_times_m("k ^ shiftright(k, 24)")}), 0)), 0))"""
    # Bytes beyond the last are empty digits
    tail = _times_m(f"h ^ {_little_endian('size - size % 4', 3)}")
    steps = {
        "h": f"{whole}",
        "a": f"if(size % 4 = 0, h, {tail})",
        "b": _times_m("a ^ shiftright(a, 13)"),
        "c": f"((b ^ shiftright(b, 15)) & {0x7FFFFFFF}L) % {partitions}",
    }
    text = steps["c"]
    for name in ("b", "a", "h"):
        text = f"get(transform(array({steps[name]}), {name} -> {text}), 0)"
    sized = f"get(transform(array(length(digits) div 2), size -> {text}), 0)"
    hashed = f"get(transform(array(hex(cast({account} as binary))), digits -> {sized}), 0)"
    named = f"try_cast(substring_index({account}, '@', -1) as int)"
    return f"if(instr({account}, '@') > 0, {named}, cast({hashed} as int))"
