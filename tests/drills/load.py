"""Payments at a steady rate from a thread, for as long as a drill needs them."""

import asyncio
import threading
import uuid

from shared.events.catalogue import PAYMENTS_RAW
from shared.events.validation import key_of
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from tests.partitions import PARTITIONS
from tests.payments import payments

PAYMENTS_MAX = 100_000
_TICK_S = 0.1
_PATIENT_S = 60.0  # longer than any drill keeps a broker away


class Load(threading.Thread):
    """Sends payments until `finish`.

    Args:
        bootstrap_servers: brokers, comma separated.
        per_s: payments each second.

    Attributes:
        sent: payments so far; the brokers may not have all of them yet.
    """

    def __init__(self, bootstrap_servers: str, per_s: int) -> None:
        super().__init__(name="load", daemon=True)
        self.sent = 0
        self._bootstrap_servers = bootstrap_servers
        self._per_tick = max(int(per_s * _TICK_S), 1)
        self._over = threading.Event()
        self._failure: KafkaUnavailableError | None = None

    def run(self) -> None:
        """Send payments at the rate."""
        try:
            asyncio.run(self._send())
        except KafkaUnavailableError as error:
            self._failure = error

    def finish(self) -> int:
        """Stop, wait until the brokers have all payments, and return their number.

        Raises:
            KafkaUnavailableError: not all of them were taken.
        """
        self._over.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.sent

    async def _send(self) -> None:
        async with IdempotentWriter(self._bootstrap_servers, request_timeout_s=_PATIENT_S) as writer:
            for value in payments(f"load-{uuid.uuid4()}", PAYMENTS_MAX):
                key, partition = key_of(value, PARTITIONS)
                await writer.write(PAYMENTS_RAW, partition, key, value)
                self.sent += 1
                if self.sent % self._per_tick == 0:
                    await asyncio.sleep(_TICK_S)  # keeps the rate
                    if self._over.is_set():
                        return
