"""A payment's path through every topic, as the logs hold it: aborted attempts and open transactions included.

Reads read_uncommitted at batch level, because only batches have producer ids, epochs and markers.

Invariant: records are found by their `origin` header, so records of other payments are never shown. Nothing is inferred
from a service.
"""

from collections import defaultdict
from contextlib import aclosing
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from shared.eos.records import Record
from shared.events.catalogue import (
    EFFECTS_DEAD_LETTER,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_RAW,
)
from shared.events.clients import SubmittedBy, decode_submitted_by
from shared.events.codec import decoder
from shared.events.headers import ORIGIN, REASON, REPAIR, SOURCE, SUBMITTED_BY, Coordinates, header
from shared.events.partitions import partition_for
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import Batch, Marker, Page, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.lineage.outcome import earliest_ms

FOLLOWED = (
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_DEAD_LETTER,
    LEDGER_TRANSFERS,
    LEDGER_POSTINGS,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_DEAD_LETTER,
)
_ORDER = {topic: place for place, topic in enumerate((PAYMENTS_RAW, *FOLLOWED))}


_RECEIVED = frozenset({PAYMENTS_ACCEPTED, LEDGER_TRANSFERS, LEDGER_POSTINGS, EFFECTS_REQUESTS})
"""Topics whose receivers ignore repeats."""


class Transaction(StrEnum):
    """The outcome of the transaction that wrote a record."""

    NONE = "none"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Hop(msgspec.Struct, frozen=True):
    """One record of the path.

    Attributes:
        repeat: whether a committed record before it on its partition has the same source. Receivers ignore a repeat.
        client, key_id: who submitted it: of the raw record as its header says, of the ledger's records for whom it
            counts. None where the record names no client; the key's id is empty where none was needed.
    """

    what: str  # kind of record: raw, accepted, transfer, debit posting and so on
    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # of the record, since 1970 UTC
    key: str | None
    producer_id: int
    producer_epoch: int
    transaction: Transaction
    marker_offset: int | None = None  # of the transaction's marker on this partition
    marker_timestamp_ms: int | None = None  # likewise, since 1970 UTC
    source: str | None = None  # the record that this one was made from, None for the raw one
    repeat: bool = False
    client: str | None = None
    key_id: str | None = None


class Way(msgspec.Struct, frozen=True):
    """The raw record and all records made from it, in order of time."""

    origin: str
    hops: tuple[Hop, ...]


async def trace(bootstrap_servers: Bootstrap, *, payment_id: str, debtor: str | None = None) -> tuple[Way, ...]:
    """Find every raw record with this payment_id and follow each through all topics.

    The payment_id may be of any schema version. With a debtor, the other partitions are not read.

    Returns:
        One path for each raw record, repeats included; none when there is no such record.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
        ValueError: the debtor is a house account of a partition that does not exist.
    """
    async with Cluster(bootstrap_servers) as cluster:
        raws = await cluster.partitions([PAYMENTS_RAW])
        if debtor is not None:
            raws = [target for target in raws if target[1] == partition_for(debtor, len(raws))]
        found = _Found()
        await _scan_raw(cluster, raws, found, payment_id, debtor)
        if not found.hops:
            return ()
        raw_hops = {str(Coordinates(hop.topic, hop.partition, hop.offset)): hop for hop in found.hops["raw"]}
        since_ms = earliest_ms(min(hop.timestamp_ms for hop in found.hops["raw"]))
        by_origin = (await _follow(cluster, set(raw_hops), since_ms)).marked()
        for origin, hop in raw_hops.items():
            by_origin[origin].append(hop)
        return tuple(Way(origin, tuple(sorted(hops, key=_place))) for origin, hops in sorted(by_origin.items()))


class _MadeFrom(NamedTuple):
    """The key by which a receiver detects a repeat."""

    target: Target
    source: bytes
    part: str


def _made_from(record: Record) -> _MadeFrom | None:
    if record.topic not in _RECEIVED:
        return None
    # A repair has a number of its own: its record does not count as a repeat of one with the same source
    source = header(record.headers, REPAIR) or header(record.headers, SOURCE)
    if source is None:
        return None
    part = _decode_kind(record.value or b"{}").effect_id if record.topic == EFFECTS_REQUESTS else ""
    return _MadeFrom((record.topic, record.partition), source, part)


class _Found:
    """Collects hops by group, and settles those of a partition when its marker comes."""

    def __init__(self) -> None:
        self.hops: dict[str, list[Hop]] = defaultdict(list)
        self._made_from: dict[str, list[_MadeFrom | None]] = defaultdict(list)
        self._open: dict[tuple[Target, int], list[tuple[str, int]]] = defaultdict(list)

    def add(self, group: str, batch: Batch, record: Record) -> None:
        """Add a record to a group: an origin's, or the group of all raw records."""
        if batch.is_transactional:
            place = (group, len(self.hops[group]))
            self._open[(record.topic, record.partition), batch.producer_id].append(place)
        self.hops[group].append(_hop(batch, record))
        self._made_from[group].append(_made_from(record))

    def settle(self, target: Target, marker: Batch) -> None:
        """Apply a marker to its producer id's transaction, whatever the epoch: fencing aborts with a newer one."""
        state = Transaction.COMMITTED if marker.marker is Marker.COMMIT else Transaction.ABORTED
        for group, index in self._open.pop((target, marker.producer_id), ()):
            self.hops[group][index] = msgspec.structs.replace(
                self.hops[group][index],
                transaction=state,
                marker_offset=marker.base_offset,
                marker_timestamp_ms=marker.timestamp_ms,
            )

    def marked(self) -> dict[str, list[Hop]]:
        """Return the hops by group, repeats marked. Within a partition they were added in order of offsets."""
        for group, hops in self.hops.items():
            processed: set[_MadeFrom] = set()
            for index, made_from in enumerate(self._made_from[group]):
                if made_from is None or hops[index].transaction in {Transaction.ABORTED, Transaction.OPEN}:
                    continue
                if made_from in processed:
                    hops[index] = msgspec.structs.replace(hops[index], repeat=True)
                processed.add(made_from)
        return self.hops


async def _scan_raw(
    cluster: Cluster, targets: list[Target], found: _Found, payment_id: str, debtor: str | None
) -> None:
    positions = await cluster.offsets(targets, EARLIEST)
    ends = await cluster.offsets(targets, LATEST)
    async with aclosing(pages(cluster, positions, ends=ends, committed=False)) as read:
        async for page in read:
            for batch in page.batches:
                if batch.is_control:
                    found.settle(page.target, batch)
                    continue
                for record in batch.records(page.target):
                    if _names(record.value, payment_id, debtor):
                        found.add("raw", batch, record)


async def _follow(cluster: Cluster, origins: set[str], since_ms: int) -> _Found:
    targets = await cluster.partitions(FOLLOWED)
    starts = await cluster.offsets(targets, since_ms)
    positions = {target: start for target, start in starts.items() if start >= 0}
    ends = await cluster.offsets(targets, LATEST)
    found = _Found()
    needles = {origin.encode() for origin in origins}
    async with aclosing(pages(cluster, positions, ends=ends, committed=False)) as read:
        async for page in read:
            _collect(page, needles, found)
    return found


def _collect(page: Page, needles: set[bytes], found: _Found) -> None:
    for batch in page.batches:
        if batch.is_control:
            found.settle(page.target, batch)
        elif any(batch.contains(needle) for needle in needles):
            for record in batch.records(page.target):
                origin = header(record.headers, ORIGIN)
                if origin is not None and origin in needles:
                    found.add(origin.decode(), batch, record)


class _Named(msgspec.Struct):
    """The identity of a payment, in every schema version."""

    payment_id: object = None
    debtor: object = None
    account_from: object = None


_decode_named = decoder(_Named)


def _names(value: bytes | None, payment_id: str, debtor: str | None) -> bool:
    try:
        named = _decode_named(value or b"")
    except msgspec.DecodeError:
        return False
    if named.payment_id != payment_id:
        return False
    return debtor is None or debtor in {str(named.debtor), str(named.account_from)}


_PLAIN = {PAYMENTS_RAW: "raw", PAYMENTS_ACCEPTED: "accepted"}


class _Kind(msgspec.Struct):
    type: str = ""
    leg: str = ""
    reason: str | None = None
    first: str = ""
    kind: str = ""
    state: str = ""
    action: str = ""
    effect_id: str = ""


_decode_kind = decoder(_Kind)


def describe(record: Record) -> str:
    if record.topic in _PLAIN:
        return _PLAIN[record.topic]
    if record.topic in {PAYMENTS_DEAD_LETTER, EFFECTS_DEAD_LETTER}:
        return f"dead letter: {(header(record.headers, REASON) or b'').decode()}"
    kind = _decode_kind(record.value or b"{}")
    if record.topic == PAYMENTS_DEDUPLICATED:
        return f"repeat of {kind.first}"
    if record.topic in {EFFECTS_REQUESTS, EFFECTS_RESULTS}:
        return _describe_effect(kind)
    if kind.type == "decline":
        return f"decline: {kind.reason}"
    return f"{kind.leg} posting" if kind.leg else kind.type.replace("_", " ")


def _describe_effect(kind: _Kind) -> str:
    if kind.state:
        return f"effect {kind.state.replace('_', ' ')}"
    return f"decision: {kind.action}" if kind.action else f"{kind.kind.replace('_', ' ')} asked for"


class _Submitted(msgspec.Struct):
    submitted_by: SubmittedBy | None = None


_decode_submitted = decoder(_Submitted)
_NAMING: Final = frozenset({PAYMENTS_ACCEPTED, LEDGER_TRANSFERS, LEDGER_POSTINGS})
"""Topics whose records name the client in their value."""


def submitted_by(record: Record) -> SubmittedBy | None:
    """Return who submitted what a record is made from, by the record alone."""
    if record.topic == PAYMENTS_RAW:
        return decode_submitted_by(header(record.headers, SUBMITTED_BY))
    if record.topic not in _NAMING:
        return None
    try:
        return _decode_submitted(record.value or b"{}").submitted_by
    except msgspec.DecodeError:
        return None


def _hop(batch: Batch, record: Record) -> Hop:
    # A raw record's headers are its producer's: it was made from no record
    source = None if record.topic == PAYMENTS_RAW else header(record.headers, SOURCE)
    by = submitted_by(record)
    return Hop(
        describe(record),
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        None if record.key is None else record.key.decode(errors="backslashreplace"),
        batch.producer_id,
        batch.producer_epoch,
        Transaction.OPEN if batch.is_transactional else Transaction.NONE,
        source=None if source is None else source.decode(),
        client=None if by is None else by.client,
        key_id=None if by is None else by.key_id,
    )


def _place(hop: Hop) -> tuple[bool, int, int, int, int]:
    # The raw record is first, whatever its producer's clock shows
    return hop.topic != PAYMENTS_RAW, hop.timestamp_ms, _ORDER[hop.topic], hop.partition, hop.offset
