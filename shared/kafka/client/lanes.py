"""State of an idempotent writer for each partition: its open batch, the full ones, and the maximum record size."""

import asyncio
from collections import deque
from typing import Any

from shared.events.catalogue import BY_NAME
from shared.events.headers import Headers
from shared.kafka.client.errors import KafkaUnavailableError, RecordTooLargeError

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
    """One partition's batches: the open one, the full ones before it, and the number in flight."""

    __slots__ = ("full", "open", "target", "under_way")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: Batch | None = None
        self.full: deque[Batch] = deque()
        self.under_way = 0


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
