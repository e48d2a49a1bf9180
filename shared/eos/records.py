"""What a service reads and writes, without any client library. Pure."""

from typing import NamedTuple, Protocol

from shared.eos.store import Store
from shared.events.headers import Headers


class Record(NamedTuple):
    """One record of an input partition, as the runtime hands it to a service.

    Attributes:
        timestamp_ms: of the record, milliseconds since 1970 UTC.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Output(NamedTuple):
    """One record to write in the same transaction; `partition` is explicit, for co-partitioning is the footing."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Handler(Protocol):
    """A service's work on one input partition: a pure function of its store and the record.

    The runtime makes one for each assigned partition, restores its store, and throws it away when the
    partition goes.
    """

    @property
    def store(self) -> Store:
        """The partition's state."""
        ...

    def process(self, record: Record) -> list[Output]:
        """Outputs of one record; changes of state go to the store.

        Raises:
            Exception: any is a defect of internal input: the transaction aborts and the service stops. A bad
            record
                from outside is no exception but an output to the dead-letter topic.
        """
        ...


class HandlerFactory(Protocol):
    """Makes the handler of an input partition."""

    def __call__(self, partition: int) -> Handler: ...
