"""Write one record for an operator's command: acknowledged by all in-sync replicas, or an error."""

import asyncio

import click

from shared.events.headers import Headers
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import RecordTooLargeError
from shared.kafka.client.idempotent import IdempotentWriter, RecordMetadata


def write(
    bootstrap_servers: Bootstrap,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
) -> RecordMetadata:
    """Write one record and wait until it is acknowledged.

    Raises:
        KafkaUnavailableError: it was not; it may or may not be written later. Every command may be given again.
        ClickException: the topic takes no record of that size.
    """

    async def send() -> RecordMetadata:
        async with IdempotentWriter(bootstrap_servers) as writer:
            return await writer.send(topic, partition, key, value, headers)

    try:
        return asyncio.run(send())
    except RecordTooLargeError as error:
        raise click.ClickException(str(error)) from error


def where(metadata: RecordMetadata) -> str:
    """Coordinates of a written record: `ledger.transfers:3:1207`."""
    return f"{metadata.topic}:{metadata.partition}:{metadata.offset}"
