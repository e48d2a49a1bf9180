"""aiokafka's sender, corrected where exactly-once needs it, and the records of a transaction before they are sent.

Five things differ from aiokafka 0.14:

1. EndTxn is sent once. Without an answer the outcome is unknown and the producer is discarded. The client would send it
   again at the same epoch, and the first request, delayed on the way, could then end a later transaction.
2. EndTxn(abort) is sent whenever a partition or group may have been added. After some errors the client forgets what it
   had added, and would leave the transaction open, which holds back the last stable offset.
3. After a commit the coordinator answers CONCURRENT_TRANSACTIONS until the markers are written. The client then sleeps
   20 ms, longer than a whole transaction takes; here it sleeps 1 ms.
4. InitProducerId requests without an answer are counted: one that arrives late fences the producer that sent it.
5. The coordinators of a transaction are counted. A coordinator without followers may have confirmed partitions that its
   successor does not have, and those get no marker (docs/upstream.md).
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.producer import sender as aiokafka_sender
from aiokafka.producer.sender import AddOffsetsToTxnHandler, AddPartitionsToTxnHandler, EndTxnHandler, InitPIDHandler
from aiokafka.producer.transaction_manager import TransactionState

from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError
from shared.eos.records import Output
from shared.kafka.client.measured import MeasuredSender, new_batch

BATCH_BYTES = 512 * 1024  # half of a broker's default maximum, so that a full batch always fits
RECORD_BYTES_MAX = 2 * 1024 * 1024  # the dead-letter topic's maximum, the largest of the catalogue

Target = tuple[str, int]  # topic, partition


class Pending:
    """Batches of records that were not sent yet, without a future or a copy for each record.

    Invariant: a partition's records keep their order; a full batch fits a request. The producer is an AIOKafkaProducer,
    which makes the batches.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._open: dict[Target, Any] = {}
        self._full: dict[Target, list[Any]] = {}

    def append(self, outputs: Iterable[Output], timestamp_ms: int) -> None:
        """Append records with one timestamp; AbortableError if one is larger than any topic accepts."""
        for topic, partition, key, value, headers in outputs:
            target = topic, partition
            batch = self._open.get(target)
            if batch is None:
                batch = self._open[target] = new_batch(self._producer)
            if batch.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers)) is not None:
                continue
            if len(value or b"") + len(key or b"") > RECORD_BYTES_MAX:
                raise AbortableError(f"a record for {topic} exceeds {RECORD_BYTES_MAX} bytes", "RecordTooLarge")
            self._full.setdefault(target, []).append(batch)
            batch = self._open[target] = new_batch(self._producer)
            batch.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers))

    def take(self) -> Iterator[list[tuple[Target, Any]]]:
        """Take everything out, in rounds of one batch for each partition: one request to each leader."""
        queues = [(target, [*self._full.get(target, ()), batch]) for target, batch in self._open.items()]
        self.clear()
        while queues:
            yield [(target, batches.pop(0)) for target, batches in queues]
            queues = [(target, batches) for target, batches in queues if batches]

    def counts(self) -> dict[str, dict[int, int]]:
        """How many records wait, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), batch in self._open.items():
            batches = (*self._full.get((topic, partition), ()), batch)
            found.setdefault(topic, {})[partition] = sum(one.record_count() for one in batches)
        return found

    def clear(self) -> None:
        self._open = {}
        self._full = {}


CONCURRENT_TRANSACTIONS_BACKOFF_S = 0.001
aiokafka_sender.BACKOFF_OVERRIDE = CONCURRENT_TRANSACTIONS_BACKOFF_S


class EndTxnOutcomeUnknownError(KafkaError):  # type: ignore[misc] # the client ships no types
    """EndTxn was sent and no answer came."""


class StrictSender(MeasuredSender):
    """The client's sender with these changes.

    Args:
        crash_points: reached as EndTxn leaves and as its answer arrives.

    Attributes:
        touched: whether a partition or group may have been added to the open transaction.
        resent: partitions to which a batch was sent more than once; the owner clears it.
        unanswered_inits: number of InitProducerId requests that were sent without an answer.
        coordinators: node ids that answered for the open transaction; the owner clears them when it begins one.
    """

    def __init__(self, client: Any, *, crash_points: CrashPoints, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.crash_points = crash_points
        self.touched = False
        self.resent: set[Any] = set()
        self.unanswered_inits = 0
        self.coordinators: set[int] = set()

    async def _do_init_pid(self, node_id: int) -> bool:
        done: bool = await _CountedInit(self).do(node_id)
        return done

    async def _send_produce_req(self, node_id: int, batches: Any) -> None:
        # Counted when a batch is taken to be sent
        self.resent.update(target for target, batch in batches.items() if batch.retry_count > 1)
        await super()._send_produce_req(node_id, batches)

    async def _do_add_partitions_to_txn(self, tps: Any) -> bool:
        return await self._coordinated(AddPartitionsToTxnHandler(self, tps))

    async def _do_add_offsets_to_txn(self, group_id: str) -> bool:
        return await self._coordinated(AddOffsetsToTxnHandler(self, group_id))

    async def _coordinated(self, handler: Any) -> bool:
        """Send a handler's request to the transaction's coordinator, and return whether that is done."""
        node_id = await self._find_coordinator(CoordinationType.TRANSACTION, self._txn_manager.transactional_id)
        self.touched = True
        done: bool = await handler.do(node_id)
        if done:
            self.coordinators.add(node_id)
        return done

    async def _do_txn_commit(self, commit_result: Any) -> None:
        await self._message_accumulator.flush_for_commit()
        manager = self._txn_manager
        if manager.is_fatal_error():
            return
        if not self.touched:
            manager.complete_transaction()
            return
        await self._coordinated(StrictEndTxn(self, commit_result))
        if manager.state is TransactionState.READY:
            self.touched = False


async def _reachable(handler: Any, node_id: int) -> bool:
    """Whether a request can be sent. If not, the client may look for the coordinator again after a pause."""
    if await handler._sender.client.ready(node_id, group=handler.group):  # noqa: SLF001 # the client's handler
        return True
    await asyncio.sleep(handler.handle_error())
    return False


class _CountedInit(InitPIDHandler):  # type: ignore[misc] # the client ships no types
    """InitProducerId, counted until its answer."""

    async def do(self, node_id: int) -> bool:
        return await _reachable(self, node_id) and await super().do(node_id)

    def create_request(self) -> Any:
        self._sender.unanswered_inits += 1
        return super().create_request()

    def handle_response(self, resp: Any) -> float | None:
        self._sender.unanswered_inits -= 1
        backoff_s: float | None = super().handle_response(resp)
        return backoff_s


class StrictEndTxn(EndTxnHandler):  # type: ignore[misc] # the client ships no types
    """EndTxn, sent once; again, for the same outcome, after the answer of a broker that does not coordinate it now."""

    async def do(self, node_id: int) -> bool:
        sender: StrictSender = self._sender
        if not await _reachable(self, node_id):
            return False
        try:
            response = await self._send(node_id)
        except KafkaError as error:
            unknown = EndTxnOutcomeUnknownError(repr(error))
            sender._txn_manager.fatal_error(unknown)  # noqa: SLF001 # the sender's own handler
            return True
        sender.crash_points.reach(crash.END_TXN_ACKNOWLEDGED)
        backoff_s = self.handle_response(response)
        if backoff_s is not None:
            await asyncio.sleep(backoff_s)
        return backoff_s is None

    async def _send(self, node_id: int) -> Any:
        points = self._sender.crash_points
        asked = asyncio.ensure_future(
            self._sender.client.send(node_id, self.create_request(), group=ConnectionGroup.COORDINATION)
        )
        if points.armed(crash.END_TXN_SENT):
            await _written(self._sender.client, node_id, asked)
        points.reach(crash.END_TXN_SENT)
        return await asked


async def _written(client: Any, node_id: int, asked: "asyncio.Future[Any]") -> None:
    """Wait until the request has left the process's own buffer, so that a crash comes after it."""
    connection = client._conns[node_id, ConnectionGroup.COORDINATION]  # noqa: SLF001 # no public access
    while not asked.done() and not connection._requests:  # noqa: SLF001 # a condition of the client's
        await asyncio.sleep(0)
    while not asked.done() and connection._writer.transport.get_write_buffer_size():  # noqa: SLF001
        await asyncio.sleep(0)
