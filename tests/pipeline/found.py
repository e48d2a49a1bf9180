"""The break that a mutation leads to, as far as a test compares it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from shared.events.headers import Coordinates
from spark.night import Kind
from tests.pipeline.worlds import Volume


class Found(NamedTuple):
    """A break, as far as a test compares it."""

    kind: str
    topic: str | None
    partition: int | None
    offset: int | None
    payment_id: str | None


class _Identity(msgspec.Struct):
    payment_id: str | None = None


def found(kind: Kind, at: Coordinates, world: Volume) -> Found:
    """A break at a record, present or removed; its payment_id is that of the record's value."""
    record = world.removed.get(at) or world.at(at)
    try:
        payment_id = msgspec.json.decode(record.value or b"", type=_Identity).payment_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        payment_id = None
    return Found(kind.value, *at, payment_id)


Mutation = Callable[[Volume], Iterator[Found]]
