"""Record headers: where a record came from. Pure.

`origin` names the raw record that everything began with, `source` the record that this one was made from,
each as `topic:partition:offset`. Together they make every path through the system checkable from outside.
`origin-time` is the raw record's timestamp, so that each hop can tell how old its work is; some records have it.
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
RESUBMISSION_OF = "resubmission-of"
REPAIR = "repair"
"""On records that `once repair` writes: `<repair id>:<number>`, the numbers ascending within one repair."""

_LOOKED_AT_MAX = 256  # records: what came by another way may not tell
_TIME_DIGITS_MAX = 18  # fits a signed 64-bit number

Headers = tuple[tuple[str, bytes], ...]


class Coordinates(NamedTuple):
    """Where one record stands in the cluster."""

    topic: str
    partition: int
    offset: int

    def encode(self) -> bytes:
        """As a header's value: `payments.raw:3:1207`."""
        return b"%b:%d:%d" % (self.topic.encode(), self.partition, self.offset)

    @classmethod
    def decode(cls, value: bytes) -> "Coordinates":
        """From a header's value.

        Raises:
            ValueError: the value is not `topic:partition:offset`.
        """
        topic, partition, offset = value.decode().split(":")
        return cls(topic, int(partition), int(offset))

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


def header(headers: Iterable[tuple[str, bytes]], name: str) -> bytes | None:
    """The value of the first header of that name, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def lineage(headers: Headers, source: bytes) -> Headers | None:
    """The headers that a record hands on to what is made from it; None when it has no origin.

    Args:
        headers: its own.
        source: its coordinates, encoded.
    """
    origin = header(headers, ORIGIN)
    if origin is None:
        return None
    time_ms = header(headers, ORIGIN_TIME)
    if time_ms is None:
        return (ORIGIN, origin), (SOURCE, source)
    return (ORIGIN, origin), (SOURCE, source), (ORIGIN_TIME, time_ms)


def origin_time_ms(headers: Headers) -> int | None:
    """The raw record's timestamp, milliseconds since 1970 UTC; None where it is not told."""
    value = header(headers, ORIGIN_TIME)
    # Anybody may have written the raw record: what no clock shows is not read
    return int(value) if value is not None and value.isdigit() and len(value) <= _TIME_DIGITS_MAX else None


def oldest_origin_time_ms(records: Iterable[Headers]) -> int | None:
    """The first time told among the first of some records, by their headers: about when the oldest of them came.

    Returns:
        Milliseconds since 1970 UTC; None where none tells.
    """
    told = (origin_time_ms(headers) for headers in islice(records, _LOOKED_AT_MAX))
    return next((time_ms for time_ms in told if time_ms is not None), None)
