"""Record headers: where a record came from. Pure.

`origin` names the raw record that everything began with, `source` the record that this one was made from,
each as `topic:partition:offset`. Together they make every path through the system checkable from outside.
"""

from collections.abc import Iterable
from typing import NamedTuple

ORIGIN = "origin"
SOURCE = "source"
REASON = "reason"
DETAIL = "detail"
SERVICE = "service"
RESUBMISSION_OF = "resubmission-of"

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
