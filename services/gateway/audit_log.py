"""Writes the audit of requests to operations.audit.

Invariant: an event that Kafka did not acknowledge is written again later, with what was counted meanwhile. Its requests
may then be in two records, but in none they are not.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from services.gateway.audit import Audit
from shared.events.audit import KeyUsed, RequestsRefused, placed
from shared.events.catalogue import OPERATIONS_AUDIT
from shared.events.headers import Headers
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import RecordMetadata

WRITE_EVERY_S: Final = 1.0
_MS_NS: Final = 1_000_000

log = logging.getLogger(__name__)


class Writer(Protocol):
    """The part of shared.kafka.client.idempotent.IdempotentWriter that the audit needs."""

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata: ...


class AuditLog:
    """The writer of a gateway's audit.

    Args:
        partitions: of operations.audit.
        wall_clock: nanoseconds since 1970 UTC.
    """

    def __init__(self, audit: Audit, writer: Writer, partitions: int, wall_clock: Callable[[], int]) -> None:
        self._audit = audit
        self._writer = writer
        self._partitions = partitions
        self._wall_clock = wall_clock
        self._failing = False

    async def run(self) -> None:
        """Write what is due, once in WRITE_EVERY_S, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.flush()

    async def flush(self, *, stopping: bool = False) -> None:
        """Write what is due, or everything where the gateway is stopping."""
        due = self._audit.take(self._wall_clock() // _MS_NS, stopping=stopping)
        await asyncio.gather(*map(self._write, due))

    async def _write(self, event: KeyUsed | RequestsRefused) -> None:
        try:
            await self._writer.send(OPERATIONS_AUDIT, *placed(event, self._partitions))
        except KafkaUnavailableError as error:
            self._audit.give_back(event)
            if not self._failing:
                self._failing = True
                log.warning("audit not written", extra={"reason": str(error)})
        except asyncio.CancelledError:
            self._audit.give_back(event)
            raise
        else:
            self._failing = False
