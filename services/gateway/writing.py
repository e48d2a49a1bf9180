"""Writes of accepted requests to payments.raw.

Invariant: a write counts as accepted only when every in-sync replica has the record. After a refusal the record may
still have been written: the client sends it again with the same payment_id, and the identity makes a repeat harmless.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from services.gateway.domain import Placement, Refusal, RefusedError
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.clients import encode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.headers import SUBMITTED_BY, Headers
from shared.http.keys import Principal
from shared.kafka.client.errors import KafkaUnavailableError, RecordTooLargeError
from shared.kafka.client.idempotent import RecordMetadata

SEND_AGAIN: Final = "send it again with the same payment_id: a repeat is recognised, so it is booked once"

log = logging.getLogger("services.gateway.service")


class Writer(Protocol):
    """The part of shared.kafka.client.idempotent.IdempotentWriter that the gateway needs."""

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata: ...


class Outage:
    """Logs a lasting failure once for each outage, not for each request: its events are `lost` and `found`."""

    def __init__(self, lost: str, found: str) -> None:
        self._lost = lost
        self._found = found
        self._failing = False

    def failed(self, error: BaseException) -> None:
        if not self._failing:
            self._failing = True
            log.warning(self._lost, extra={"reason": str(error) or "no answer in time"})

    def worked(self) -> None:
        if self._failing:
            self._failing = False
            log.info(self._found)


class RawWriter:
    """Writes to payments.raw in a client's name.

    Args:
        accept_timeout_s: seconds until a record that Kafka does not acknowledge is refused with 503.
    """

    def __init__(self, writer: Writer, accept_timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = accept_timeout_s
        self._outage = Outage("kafka takes no payments", "kafka takes payments again")

    async def write(self, principal: Principal, placement: Placement, value: bytes) -> RecordMetadata:
        """Write one record; RefusedError if Kafka does not acknowledge it in time, or does not take its size."""
        try:
            async with asyncio.timeout(self._timeout_s):
                metadata = await self._send(_submitted_by(principal), placement, value)
        except (KafkaUnavailableError, TimeoutError) as error:
            raise self._unavailable(error) from error
        except RecordTooLargeError as error:
            raise _too_large(error) from error
        self._outage.worked()
        return metadata

    async def write_all(
        self, principal: Principal, records: Sequence[tuple[Placement, bytes]]
    ) -> list[RecordMetadata | RefusedError]:
        """Write records, in their order on each partition; return for each what `write` returns or raises."""
        if not records:
            return []
        headers = _submitted_by(principal)
        sends = [asyncio.ensure_future(self._send(headers, placement, value)) for placement, value in records]
        try:
            await asyncio.wait(sends, timeout=self._timeout_s)
            return [self._result(send) for send in sends]
        finally:
            for send in sends:
                send.cancel()

    def _result(self, send: "asyncio.Task[RecordMetadata]") -> RecordMetadata | RefusedError:
        if not send.done():
            return self._unavailable(TimeoutError())
        error = send.exception()
        if error is None:
            self._outage.worked()
            return send.result()
        if isinstance(error, KafkaUnavailableError):
            return self._unavailable(error)
        if isinstance(error, RecordTooLargeError):
            return _too_large(error)
        raise error

    async def _send(self, headers: Headers, placement: Placement, value: bytes) -> RecordMetadata:
        return await self._writer.send(PAYMENTS_RAW, placement.partition, placement.key, value, headers)

    def _unavailable(self, error: BaseException) -> RefusedError:
        self._outage.failed(error)
        what = f"Kafka did not acknowledge the payment within {self._timeout_s:g} s"
        return RefusedError(Refusal.KAFKA_UNAVAILABLE, f"{what}; {SEND_AGAIN}")


def _submitted_by(principal: Principal) -> Headers:
    return ((SUBMITTED_BY, encode_submitted_by(principal.submitted_by)),)


def _too_large(error: RecordTooLargeError) -> RefusedError:
    return RefusedError(Reason.TOO_LARGE, f"{error}: send a smaller payment")
