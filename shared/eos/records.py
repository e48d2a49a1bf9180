"""The records that a service reads and writes, without any client library. Pure."""

from typing import NamedTuple, Protocol

from shared.eos.store import Store
from shared.events.headers import ORIGIN, SOURCE, Headers, lineage


class Record(NamedTuple):
    """One record of an input partition, as the runtime hands it to a service: committed, in the partition's order."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # since 1970 UTC
    key: bytes | None
    value: bytes | None
    headers: Headers

    def output(self, topic: str, key: bytes | None, value: bytes | None, *, partition: int | None = None) -> "Output":
        """Return a record made from this one, with its lineage in the headers.

        Args:
            topic: one of the service's outputs.
            partition: the same as this record's by default.
        """
        own, number, offset, _, _, _, headers = self  # once for each record of a service: attributes would take longer
        source = f"{own}:{number}:{offset}".encode()
        links = lineage(headers, source) or ((ORIGIN, source), (SOURCE, source))
        return Output(topic, number if partition is None else partition, key, value, links)


class Output(NamedTuple):
    """One record to write in the same transaction; `partition` is explicit because topics are co-partitioned.

    Its headers name its `source`: the record that it was made from, or another one of the same input partition. By it,
    a new owner finds the partition's records in a torn transaction, and receivers recognise repeats. `Record.output`
    sets it.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Handler(Protocol):
    """A service's work on one input partition: a pure function of its store and the record.

    The runtime creates one for each assigned partition, restores its store from the changelog, and discards it when the
    partition is revoked. After an abort it rolls the store back and hands out the same records again. So a handler
    keeps nothing outside of its store, reads no clock, and calls no other system.
    """

    @property
    def store(self) -> Store:
        """The partition's state."""
        ...

    def process(self, record: Record) -> list[Output]:
        """Return the outputs of one record; apply state changes to the store.

        An exception is a defect of internal input: the transaction aborts and the service stops. A bad record from
        outside is not an exception; it is written to the dead-letter topic.
        """
        ...
