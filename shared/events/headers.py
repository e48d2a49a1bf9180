"""Record headers: where a record came from. Pure.

`origin` names the raw record at the beginning, `source` the record that this one was made from, each as
`topic:partition:offset`. Together they make every path through the system checkable from outside. `origin-time` is the
raw record's timestamp, by which each hop measures end-to-end latency; only some records have it.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

ORIGIN = "origin"
SOURCE = "source"
ORIGIN_TIME = "origin-time"
REASON = "reason"
DETAIL = "detail"
SERVICE = "service"
SUBMITTED_BY = "submitted-by"
"""On raw records: the client and the key, as `clients.encode_submitted_by` writes them. Dead letters keep it."""
RESUBMISSION_OF = "resubmission-of"
REPAIR = "repair"
"""On records that `once repair` writes: `<repair id>:<number>`, the numbers ascending within one repair."""

_LOOKED_AT_MAX = 256  # records searched for an origin time
_TIME_DIGITS_MAX = 18  # fits a signed 64-bit number

Headers = tuple[tuple[str, bytes], ...]


class Coordinates(NamedTuple):
    topic: str
    partition: int
    offset: int

    def encode(self) -> bytes:
        """Return a header's value: `payments.raw:3:1207`."""
        return b"%b:%d:%d" % (self.topic.encode(), self.partition, self.offset)

    @classmethod
    def decode(cls, value: bytes) -> "Coordinates":
        """Parse a header's value; any other form raises ValueError."""
        topic, partition, offset = value.decode().split(":")
        return cls(topic, int(partition), int(offset))

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


def header(headers: Iterable[tuple[str, bytes]], name: str) -> bytes | None:
    """Return the value of the first header of that name, or None."""
    for key, value in headers:  # a loop: each hop calls it several times for each record
        if key == name:
            return value
    return None


def lineage(headers: Headers, source: bytes) -> Headers | None:
    """Return the lineage headers for a record made from one with these headers; None when it has no origin.

    `source` holds its coordinates, encoded.
    """
    origin = time_ms = None
    for name, value in headers:  # the first of each name
        if name == ORIGIN and origin is None:
            origin = value
        elif name == ORIGIN_TIME and time_ms is None:
            time_ms = value
    if origin is None:
        return None
    links = (ORIGIN, origin), (SOURCE, source)
    return links if time_ms is None else (*links, (ORIGIN_TIME, time_ms))


def origin_time_ms(headers: Headers) -> int | None:
    """Return the raw record's timestamp, milliseconds since 1970 UTC; None when the header is missing."""
    value = header(headers, ORIGIN_TIME)
    # Any client may have written the raw record: an impossible time is ignored
    return int(value) if value is not None and value.isdigit() and len(value) <= _TIME_DIGITS_MAX else None


def oldest_origin_time_ms(records: Iterable[Headers]) -> int | None:
    """Return the first origin time among some records' headers: about when the oldest of them was received.

    Milliseconds since 1970 UTC; None where no record has one.
    """
    times_ms = (origin_time_ms(headers) for headers in islice(records, _LOOKED_AT_MAX))
    return next((time_ms for time_ms in times_ms if time_ms is not None), None)
