"""The client's idempotent producer without transactions: configure, start and discard it."""

import asyncio
import contextlib
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.errors import denied, denying_unusable, error_name, is_denied, unavailable
from shared.kafka.client.handshake import refuse_handshake
from shared.kafka.client.leaving import give_up
from shared.kafka.client.measured import MeasuredSender, replace_sender

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
    replace_sender(producer, MeasuredSender, RETRY_BACKOFF_MS)
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
