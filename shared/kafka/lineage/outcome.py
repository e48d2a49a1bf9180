"""The outcome of one raw record, found by its coordinates: read_committed, without a group and without an index.

Little is read because the path is known. A record's outputs carry its coordinates as `origin`, are later, and are on
its own partition or its creditor's.

Invariant: only committed records count.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from enum import StrEnum
from typing import NamedTuple

from shared.eos.records import Record
from shared.events.catalogue import (
    LEDGER_POSTINGS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_RAW,
)
from shared.events.clients import SubmittedBy, decode_submitted_by
from shared.events.codec import decoder
from shared.events.headers import DETAIL, ORIGIN, REASON, SUBMITTED_BY, Coordinates, header
from shared.events.partitions import partition_for
from shared.events.payments import Repeat
from shared.events.postings import CREDIT, DEBIT, Decline, Posting, decode_ledger_event
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import LATEST, Cluster, Target
from shared.kafka.client.errors import unavailable
from shared.kafka.client.reader import record_at

CLOCK_SKEW_S_MAX = 30.0
"""Seconds that a machine's clock is taken to differ from the brokers' at most, where no setting says it."""
_decode_repeat = decoder(Repeat)
_TOPICS = (PAYMENTS_RAW, PAYMENTS_ACCEPTED, PAYMENTS_DEDUPLICATED, PAYMENTS_DEAD_LETTER, LEDGER_POSTINGS)


class RecordNotFoundError(LookupError):
    """There is no record at these coordinates."""


class State(StrEnum):
    """Progress of a raw record."""

    RECEIVED = "received"
    ACCEPTED = "accepted"
    DEDUPLICATED = "deduplicated"
    DEAD_LETTERED = "dead_lettered"
    DECLINED = "declined"
    POSTED = "posted"
    COMPLETED = "completed"


FINAL = frozenset({State.DEDUPLICATED, State.DEAD_LETTERED, State.DECLINED, State.COMPLETED})
"""States that never change."""


class Outcome(NamedTuple):
    """The outcome of a raw record."""

    state: State  # posted means debited, completed means credited as well, or an account opened
    at: Coordinates  # coordinates of the record that shows it
    reason: str | None = None  # why it was declined or dead-lettered
    detail: str | None = None  # of a dead letter, what to change; of a repeat, the first payment's coordinates
    submitted_by: SubmittedBy | None = None  # by the raw record's header; None if it is missing or malformed


async def outcome(
    bootstrap_servers: Bootstrap,
    partition: int,
    offset: int,
    *,
    deadline_s: float,
    clock_skew_s_max: float = CLOCK_SKEW_S_MAX,
    is_meant: Callable[[Record], bool] = lambda _: True,
) -> Outcome:
    """Find the outcome of the record at these coordinates of payments.raw.

    `is_meant` says whether the raw record is the one that the caller means. `clock_skew_s_max` is as in `earliest_ms`.

    Raises:
        RecordNotFoundError: there is no record, or `is_meant` rejects it.
        KafkaUnavailableError: the outcome was not found within `deadline_s`.
    """
    try:
        async with asyncio.timeout(deadline_s), Cluster(bootstrap_servers, deadline_s=deadline_s) as cluster:
            partitions = len([t for t, _ in await cluster.partitions(_TOPICS) if t == LEDGER_POSTINGS])
            raw = Coordinates(PAYMENTS_RAW, partition, offset)
            record = await record_at(cluster, raw, committed=False)
            if record is None:
                raise RecordNotFoundError(f"no record at {raw}")
            if not is_meant(record):
                raise RecordNotFoundError(f"another record at {raw}")
            by = decode_submitted_by(header(record.headers, SUBMITTED_BY))
            since_ms = earliest_ms(record.timestamp_ms, clock_skew_s_max)
            return (await _follow(cluster, raw, since_ms, partitions))._replace(submitted_by=by)
    except TimeoutError as error:
        raise unavailable(bootstrap_servers, f"the state was not found out within {deadline_s} s") from error


def earliest_ms(raw_ms: int, clock_skew_s_max: float = CLOCK_SKEW_S_MAX) -> int:
    """Return the time from which on the records made from a raw record are searched, in milliseconds since 1970 UTC.

    Args:
        raw_ms: of the raw record, by its producer's clock. If that was ahead by more than the skew, the records made
            from it are found only until that time.
        clock_skew_s_max: seconds that each machine's clock may differ from the brokers'. What is read grows with it.
    """
    return max(min(raw_ms, time.time_ns() // 1_000_000) - int(2000 * clock_skew_s_max), 0)


async def _follow(cluster: Cluster, raw: Coordinates, since_ms: int, partitions: int) -> Outcome:
    intake = [(topic, raw.partition) for topic in (PAYMENTS_ACCEPTED, PAYMENTS_DEDUPLICATED, PAYMENTS_DEAD_LETTER)]
    found = await _find(cluster, intake, raw, since_ms)
    if found is None:
        return Outcome(State.RECEIVED, raw)
    if found.topic != PAYMENTS_ACCEPTED:
        return _refused(found)
    decided = await _find(cluster, [(LEDGER_POSTINGS, raw.partition)], raw, since_ms, _is_decision)
    if decided is None:
        return Outcome(State.ACCEPTED, _at(found))
    event = decode_ledger_event(decided.value or b"")
    if isinstance(event, Decline):
        return Outcome(State.DECLINED, _at(decided), event.reason)
    if not isinstance(event, Posting):
        return Outcome(State.COMPLETED, _at(decided))
    creditor = LEDGER_POSTINGS, partition_for(event.creditor, partitions)
    credit = await _find(cluster, [creditor], raw, since_ms, _is_credit)
    return Outcome(State.POSTED, _at(decided)) if credit is None else Outcome(State.COMPLETED, _at(credit))


def _refused(found: Record) -> Outcome:
    if found.topic == PAYMENTS_DEDUPLICATED:
        return Outcome(State.DEDUPLICATED, _at(found), None, _decode_repeat(found.value or b"").first)
    reason, detail = (header(found.headers, name) for name in (REASON, DETAIL))
    return Outcome(State.DEAD_LETTERED, _at(found), (reason or b"").decode(), (detail or b"").decode())


async def _find(
    cluster: Cluster,
    targets: list[Target],
    raw: Coordinates,
    since_ms: int,
    accept: Callable[[Record], bool] = lambda _: True,
) -> Record | None:
    """Return the first committed record of that origin, stamped `since_ms` or later."""
    starts = await cluster.offsets(targets, since_ms)
    ends = await cluster.offsets(targets, LATEST, committed=True)
    positions = {target: start for target, start in starts.items() if start >= 0}
    origin = raw.encode()
    async with aclosing(pages(cluster, positions, ends=ends, committed=True)) as read:
        async for page in read:
            for batch in page.batches:
                if not batch.contains(origin):
                    continue
                for record in batch.records(page.target):
                    if header(record.headers, ORIGIN) == origin and accept(record):
                        return record
    return None


def _is_decision(record: Record) -> bool:
    """Whether a posting is a debit, a decline or an account event: the ledger writes one for each accepted record."""
    event = decode_ledger_event(record.value or b"")
    return not isinstance(event, Posting) or event.leg == DEBIT


def _is_credit(record: Record) -> bool:
    event = decode_ledger_event(record.value or b"")
    return isinstance(event, Posting) and event.leg == CREDIT


def _at(record: Record) -> Coordinates:
    return Coordinates(record.topic, record.partition, record.offset)
