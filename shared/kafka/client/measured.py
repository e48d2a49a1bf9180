"""Metrics that the client does not provide: requests, their errors, and the time of batches before they are sent.

aiokafka has no metrics.

Invariant: the client's behaviour does not change, and no work is added for each record. `measure_producer` corrects one
defect of its producers.
"""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from aiokafka.client import ConnectionGroup
from aiokafka.errors import DuplicateSequenceNumber, NoError, OutOfOrderSequenceNumber
from aiokafka.producer.sender import Sender, SendProduceReqHandler

from shared.eos.errors import GENERATION, SEVERITIES, Severity, severity
from shared.kafka.client.errors import error_for
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values
from shared.telemetry import metrics
from shared.telemetry.instruments import at_zero

TRANSACTIONAL_APIS: Final = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)
"""Requests that carry a producer's epoch."""

FENCING: Final = ("InvalidProducerEpoch", "ProducerFenced")
"""Errors that report fencing: the former by leaders and by groups, the latter by transaction coordinators (KIP-588)."""


REMOVALS: Final = ("UnknownMemberIdError", "FencedMemberEpochError")
"""Errors that report to a heartbeat that the group has removed the member: others may own its partitions."""


def show_transactions() -> None:
    """Export the counters that alerts watch, at 0, in a process that has transactional producers."""
    of_severity = {
        kind: [name for name, found in SEVERITIES.items() if found is kind]
        for kind in (Severity.ABORTABLE, Severity.RETRIABLE)
    }
    at_zero(metrics.FENCED, TRANSACTIONAL_APIS, FENCING)
    at_zero(metrics.FENCED, ["TxnOffsetCommit"], GENERATION)
    at_zero(metrics.FENCED, ["ConsumerGroupHeartbeat"], REMOVALS)
    at_zero(metrics.TRANSACTIONS, [metrics.COMMITTED], [metrics.NO_CAUSE])
    at_zero(metrics.TRANSACTIONS, [metrics.ABORTED], [metrics.STOPPED, *of_severity[Severity.ABORTABLE]])
    at_zero(metrics.TRANSACTIONS, [metrics.UNKNOWN], [*TRANSACTIONAL_APIS, *of_severity[Severity.RETRIABLE]])


class _UnderWay:
    """Number of requests in flight, of all producers of the process."""

    requests = 0


_under_way = _UnderWay()
metrics.REQUESTS_IN_FLIGHT.add(lambda: [((), _under_way.requests)])


def measure_client(client: Any) -> None:
    """Measure every request of a producer's client from now on.

    Args:
        client: an AIOKafkaClient; its `send` is wrapped.
    """
    send = client.send
    latencies: dict[str, Any] = {}

    async def measured(node_id: int, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        api = request.api if isinstance(request, Request) else type(request).__name__.removesuffix("Request")
        begun_s = time.monotonic()
        _under_way.requests += 1
        try:
            response = await send(node_id, request, group=group)
        finally:
            _under_way.requests -= 1
        latency = latencies.get(api)
        if latency is None:
            latency = latencies[api] = metrics.REQUEST_LATENCY.labels(api)
        latency.observe(time.monotonic() - begun_s)
        _examine(api, response)
        return response

    client.send = measured


def _examine(api: str, response: Any) -> None:
    """Count sequence errors, fencing and throttling in a response."""
    if api not in TRANSACTIONAL_APIS:
        return
    throttled_ms, codes = _throttle_and_errors(response)
    if api == "Produce" and throttled_ms:
        metrics.PRODUCE_THROTTLE_TIME.inc(throttled_ms / 1000)
    for code in codes:
        if code == NoError.errno:
            continue
        error = error_for(code)
        if error is DuplicateSequenceNumber:
            metrics.DUPLICATE_SEQUENCE.inc()
        elif error is OutOfOrderSequenceNumber:
            metrics.OUT_OF_ORDER_SEQUENCE.inc()
        elif error.__name__ in GENERATION or severity(error.__name__) is Severity.FENCED:
            metrics.FENCED.labels(api, error.__name__).inc()


def _throttle_and_errors(response: Any) -> tuple[int, Iterable[int]]:
    """Throttle time in milliseconds and all error codes of a response, the client's or one of `requests`."""
    if isinstance(response, dict):
        return response["ThrottleTimeMs"], _codes_in(response)
    if hasattr(response, "topics"):
        return response.throttle_time_ms, (part[1] for _, parts in response.topics for part in parts)
    return response.throttle_time_ms, (response.error_code,)


def _codes_in(response: Values) -> Iterator[int]:
    for name, value in response.items():
        if name.endswith("ErrorCode"):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from _codes_in(item)


class _MeasuredSender(Sender):  # type: ignore[misc] # the client ships no types
    """The client's sender; it also measures how long batches waited, and counts retries."""

    async def _send_produce_req(self, node_id: int, batches: Any) -> None:
        now_s = time.monotonic()
        for batch in batches.values():
            if batch.retry_count == 1:  # incremented when it is taken, so this is its first time
                begun_s = getattr(batch._builder, "begun_s", batch._ctime)  # noqa: SLF001 # no public attribute has it
                metrics.RECORD_QUEUE_TIME.observe(now_s - begun_s)
        handler = SendProduceReqHandler(self, batches)
        await handler.do(node_id)
        retried = sum(batch.record_count for batch in handler._to_reenqueue)  # noqa: SLF001 # the same
        if retried:
            metrics.records_retried(retried)
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches)


def new_batch(producer: Any) -> Any:
    """Return an empty batch of a producer, with the time of its creation."""
    batch = producer.create_batch()
    batch.begun_s = time.monotonic()
    return batch


SEQUENCES: Final = 2**31
"""After the last one, 2,147,483,647, a producer's sequence goes on at 0 (KIP-98)."""


def _advance_sequence(manager: Any, target: Any, records: int) -> None:
    """The client goes on at -2,147,483,648 instead, which brokers refuse."""
    sequences = manager._sequence_numbers  # noqa: SLF001 # no public access
    sequences[target] = (sequences[target] + records) % SEQUENCES


def measure_producer(producer: Any, retry_backoff_ms: int) -> None:
    """Measure a producer from its start on, and correct its sequence numbers; it has no extension point for either.

    Args:
        producer: an idempotent AIOKafkaProducer, not started.
        retry_backoff_ms: as the producer has it.
    """
    inner = producer._sender  # noqa: SLF001 # no public access
    manager = inner._txn_manager  # noqa: SLF001
    manager.increment_sequence_number = partial(_advance_sequence, manager)
    producer._sender = _MeasuredSender(  # noqa: SLF001
        producer.client,
        acks=inner._acks,  # noqa: SLF001
        txn_manager=manager,
        message_accumulator=inner._message_accumulator,  # noqa: SLF001
        retry_backoff_ms=retry_backoff_ms,
        request_timeout_ms=inner._request_timeout_ms,  # noqa: SLF001
    )
    measure_client(producer.client)
