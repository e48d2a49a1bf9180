"""The client's idempotent producer without transactions, and an idempotent writer's batches for each partition."""

import asyncio
import contextlib
from collections import deque
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from shared.events.catalogue import BY_NAME
from shared.events.headers import Headers
from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.connections import Client
from shared.kafka.client.errors import (
    KafkaUnavailableError,
    RecordTooLargeError,
    denied,
    denying_unusable,
    error_name,
    is_denied,
    refuse_handshake,
    unavailable,
)
from shared.kafka.client.leaving import give_up
from shared.kafka.client.measured import measure_producer

MESSAGE_BYTES_MAX = 1_048_588  # max.message.bytes where the topic does not say otherwise
BATCH_OVERHEAD_BYTES = 128  # the batch's header and the record's length fields
HEADER_OVERHEAD_BYTES = 10  # two lengths

Target = tuple[str, int]
"""A partition: topic and number."""


class Batch:
    """Records of one partition that are not acknowledged yet.

    Attributes:
        acked: gets the base offset, or the error as a result: it never raises.
        size: bytes, once it takes no more records.
        due: it has lingered.
        written: it holds a record of write(), whose failure is reported by a later call only.
    """

    __slots__ = ("acked", "builder", "due", "expiry", "linger", "records", "size", "written")

    def __init__(self, builder: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.builder = builder
        self.acked: asyncio.Future[int | KafkaUnavailableError] = loop.create_future()
        self.records = 0
        self.size = 0
        self.due = False
        self.written = False
        self.linger: asyncio.TimerHandle | None = None
        self.expiry: asyncio.TimerHandle | None = None


class Lane:
    """One partition's batches: the open one, the full ones before it, and the number in flight.

    Attributes:
        turn: of a batch to be handed to the client, which lets a later one overtake it while it waits for metadata.
    """

    __slots__ = ("full", "open", "target", "turn", "under_way")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: Batch | None = None
        self.full: deque[Batch] = deque()
        self.under_way = 0
        self.turn = asyncio.Lock()


def refuse_oversize(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    """Refuse a record that the brokers would refuse, together with its whole batch.

    Raises:
        RecordTooLargeError: the topic takes no record of that size.
    """
    known = BY_NAME.get(topic)
    limit = int(known.config.get("max.message.bytes", MESSAGE_BYTES_MAX)) if known else MESSAGE_BYTES_MAX
    size = len(key or b"") + len(value or b"") + BATCH_OVERHEAD_BYTES
    size += sum(len(name.encode()) + len(content) + HEADER_OVERHEAD_BYTES for name, content in headers)
    if size > limit:
        raise RecordTooLargeError(f"a record of {size} bytes for {topic}, which takes {limit}: make it smaller")


BATCH_BYTES = 512 * 1024  # half of a broker's default maximum, so that a full batch always fits
DISCARD_S = 2.0  # seconds that a discarded producer may take for requests in flight
RETRY_BACKOFF_MS = 50


async def start(bootstrap_servers: Bootstrap, client_id: str, timeout_s: float) -> Any:
    """Start an idempotent producer under a producer id of its own.

    Raises:
        KafkaUnavailableError: no broker assigned one within `timeout_s` seconds.
        DeniedError: the brokers refuse this principal, or its files cannot be used.
    """
    with denying_unusable():
        options = client_options(bootstrap_servers)
    producer = AIOKafkaProducer(
        **options,
        client_id=client_id,
        acks="all",
        enable_idempotence=True,
        max_batch_size=BATCH_BYTES,
        linger_ms=0,
        request_timeout_ms=int(timeout_s * 1000 / 2),  # room for a second attempt
        retry_backoff_ms=RETRY_BACKOFF_MS,
    )
    Client.adopt(producer.client)
    measure_producer(producer, RETRY_BACKOFF_MS)
    try:
        await asyncio.wait_for(producer.start(), timeout_s)
    except BaseException as error:
        await discard(producer)
        if is_denied(error):
            raise denied(bootstrap_servers, f"{error_name(error)} {error}") from error
        if isinstance(error, KafkaError | TimeoutError):
            await refuse_handshake(bootstrap_servers)
            raise unavailable(bootstrap_servers, "no broker answers") from error
        raise
    return producer


async def discard(producer: Any) -> None:
    """Discard a producer: let it finish requests in flight for a short time, then drop its connections."""
    with contextlib.suppress(TimeoutError, KafkaError):
        await asyncio.wait_for(producer.stop(), DISCARD_S)
        return
    await give_up(producer)  # stop() would wait for ever
