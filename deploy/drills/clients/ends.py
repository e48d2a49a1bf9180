"""Two clients that write transactions, and differ in what they do when the end of one is not answered.

Stock aiokafka sends the end again, and begins the next transaction under the same epoch. The project's producer does
not know how the transaction ended: a new one initialises, which raises the epoch and ends what is open, and does the
work again if it was to be committed.
"""

from types import TracebackType
from typing import Any, Protocol, Self

from deploy.drills.clients.stock import stock_producer
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import UnknownOutcomeError
from shared.eos.records import Output
from shared.kafka.runtime.producer import TransactionalProducer

TRANSACTION_TIMEOUT_MS = 3_000


class Client(Protocol):
    """A client with one transaction at a time; open while its context is entered."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def begin(self) -> None:
        """Begin a transaction."""

    async def put(self, partition: int, value: bytes) -> None:
        """Write a record, and wait until it is acknowledged."""

    async def end(self, *, commit: bool) -> None:
        """Commit or abort, and return when that is sure."""


class Stock:
    """Stock aiokafka."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, topic: str) -> None:
        self._made = stock_producer(bootstrap_servers, transactional_id=transactional_id)
        self._topic = topic
        self._producer: Any = None

    async def __aenter__(self) -> Self:
        self._producer = await self._made.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._made.__aexit__(kind, error, traceback)

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def put(self, partition: int, value: bytes) -> None:
        await self._producer.send_and_wait(self._topic, value, partition=partition)

    async def end(self, *, commit: bool) -> None:
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())


class Ours:
    """The project's producer."""

    def __init__(self, bootstrap_servers: str, transactional_id: str, topic: str) -> None:
        self._identity = bootstrap_servers, transactional_id
        self._topic = topic
        self._written: list[tuple[int, bytes]] = []

    async def __aenter__(self) -> Self:
        await self._initialise()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._producer.discard()

    async def begin(self) -> None:
        self._written.clear()
        await self._producer.begin()

    async def put(self, partition: int, value: bytes) -> None:
        self._written.append((partition, value))
        self._producer.append([Output(self._topic, partition, None, value, ())], 0)
        await self._producer.flush()

    async def end(self, *, commit: bool) -> None:
        try:
            await (self._producer.commit() if commit else self._producer.abort())
        except UnknownOutcomeError:
            await self._producer.discard()
            await self._initialise()
            if commit:
                await self._write_again()

    async def _write_again(self) -> None:
        written = list(self._written)
        await self.begin()
        for partition, value in written:
            await self.put(partition, value)
        await self.end(commit=True)

    async def _initialise(self) -> None:
        self._producer = TransactionalProducer(*self._identity, TRANSACTION_TIMEOUT_MS, NO_CRASHES)
        await self._producer.init(30)
