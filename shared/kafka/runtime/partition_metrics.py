"""Metrics of an input partition while an instance owns it: lag, size of its state, progress of a restore, repeats.

They are read at each scrape, so a partition that is revoked takes its series with it, and a transaction pays only for
counting the changelog's bytes.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from shared.eos.records import Record
from shared.eos.store import Change, Store
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import SOURCE, Headers, header, oldest_origin_time_ms
from shared.kafka.client.cluster import Target
from shared.kafka.client.fetcher import Fetcher
from shared.telemetry import metrics
from shared.telemetry.instruments import Reading

_SIZED_MAX = 32  # of one transaction, about: what is shown is a mean

log = logging.getLogger(__name__)


class PartitionMetrics:
    """The figures of one input partition, shown from now on until `hide`."""

    def __init__(self, fetcher: Fetcher, target: Target, store: Store) -> None:
        self._fetcher = fetcher
        self._target = target
        self._store = store
        self._labels = (target[0], str(target[1]))
        self._remaining = 0
        self._entries_seen = 0
        self._bytes_seen = 0
        self._sources = [
            metrics.RECORDS_LAG.add(self._lag),
            metrics.LSO_LAG.add(self._lso_lag),
            metrics.RESTORE_REMAINING.add(lambda: [(self._labels[1:], self._remaining)]),
            metrics.STATE_ENTRIES.add(lambda: [(self._labels[1:], len(self._store))]),
            metrics.STATE_BYTES.add(self._state_bytes),
        ]

    def hide(self) -> None:
        for hide in self._sources:
            hide()

    def also(self, hide: Callable[[], None]) -> None:
        """Add something that `hide` ends as well."""
        self._sources.append(hide)

    def restoring(self, done: int, total: int) -> None:
        """Take note of how many offsets of the changelog were read, of how many."""
        self._remaining = total - done

    def changed(self, changes: Sequence[Change]) -> None:
        """Take note of changelog records, read or written, for the mean size of an entry; of many, a part is enough."""
        for key, value in changes[:: 1 + len(changes) // _SIZED_MAX]:
            if value is not None:
                self._entries_seen += 1
                self._bytes_seen += len(key) + len(value)

    def _lag(self) -> list[Reading]:
        """Offsets between the position and the last stable offset, as of the last fetch.

        The position passes markers, unlike the offset that is committed.
        """
        state = self._fetcher.state(self._target)
        if state is None or state.last_stable_offset is None:
            return []
        return [(self._labels, max(state.last_stable_offset - state.position, 0))]

    def _lso_lag(self) -> list[Reading]:
        state = self._fetcher.state(self._target)
        if state is None or state.last_stable_offset is None or state.high_watermark is None:
            return []
        return [(self._labels, max(state.high_watermark - state.last_stable_offset, 0))]

    def _state_bytes(self) -> list[Reading]:
        mean = self._bytes_seen / self._entries_seen if self._entries_seen else 0.0
        return [(self._labels[1:], round(mean * len(self._store)))]


def born_ms(records: Sequence[Record]) -> int | None:
    """When the raw record came that the oldest of these goes back to, milliseconds since 1970 UTC; None if unknown.

    Records of payments.raw may have headers of another system, so their own timestamp counts.
    """
    first = records[0]
    if first.topic == PAYMENTS_RAW:
        return first.timestamp_ms
    return oldest_origin_time_ms(record.headers for record in records)


def tell_latency(born: int | None, hop: str) -> None:
    """Observe, for a hop by topic, the age of the oldest work in a committed transaction, `born` as in `born_ms`."""
    if born is not None and born >= 0:
        metrics.END_TO_END_LATENCY.labels(hop).observe(max(time.time() - born / 1000, 0.0))


class Repeat(Protocol):
    """A record whose source was processed already."""

    @property
    def offset(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


def report_repeats(topic: str, partition: int, repeats: Sequence[Repeat]) -> None:
    """Count repeats of one input partition and log the first, after the transaction that ignored them was committed."""
    if not repeats:
        return
    metrics.SOURCE_REPEATS.labels(topic).inc(len(repeats))
    first = repeats[0]
    source = header(first.headers, SOURCE) or b""
    log.error(
        "repeats ignored: their sources were processed already",
        extra={
            "topic": topic,
            "partition": partition,
            "offset": first.offset,
            "source": source.decode(errors="backslashreplace"),
            "records": len(repeats),
        },
    )
