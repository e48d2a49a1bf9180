"""Counts and logs the records that a receiver ignores because it processed their source already.

Every receiver reports them alike, after the commit of the transaction that passed over them.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from shared.events.headers import SOURCE, Headers, header
from shared.telemetry import metrics

log = logging.getLogger(__name__)


class Repeat(Protocol):
    """A record whose source was processed already."""

    @property
    def offset(self) -> int: ...
    @property
    def headers(self) -> Headers: ...


def report_repeats(topic: str, partition: int, repeats: Sequence[Repeat]) -> None:
    """Count repeats of one input partition, and log the first of them.

    Args:
        topic, partition: the input's.
        repeats: in order of their offsets; none is nothing.
    """
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
