"""The records that a service reads and writes, without any client library. Pure."""

from typing import NamedTuple, Protocol

from shared.eos.store import Store
from shared.events.headers import Headers


class Record(NamedTuple):
    """One record of an input partition, as the runtime hands it to a service."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # since 1970 UTC
    key: bytes | None
    value: bytes | None
    headers: Headers


class Output(NamedTuple):
    """One record to write in the same transaction; `partition` is explicit because topics are co-partitioned."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Handler(Protocol):
    """A service's work on one input partition: a pure function of its store and the record.

    The runtime creates one for each assigned partition, restores its store, and discards it when the partition is
    revoked.
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
