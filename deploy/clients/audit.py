"""The audit of clients and keys, operations.audit: written by commands, read by them again."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

from shared.events.audit import AuditEvent, KeyUsed, decode_audit, placed
from shared.events.catalogue import OPERATIONS_AUDIT
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count, partition_since

KeyName = tuple[str, str]
"""A client and the id of its key."""
_CLIENT_ID: Final = "once-clients"


async def write_events(bootstrap_servers: Bootstrap, events: Iterable[AuditEvent]) -> None:
    """Write events and wait until all in-sync replicas have them.

    Raises KafkaUnavailableError: the cluster does not answer, or did not acknowledge them all.
    """
    partitions = await partition_count(bootstrap_servers, [OPERATIONS_AUDIT])
    async with IdempotentWriter(bootstrap_servers, client_id=_CLIENT_ID) as writer:
        for event in events:
            await writer.send(OPERATIONS_AUDIT, *placed(event, partitions))


async def read_events(bootstrap_servers: Bootstrap, since_ms: int) -> list[AuditEvent]:
    """Read the events since a time, milliseconds since 1970 UTC, in their order.

    Raises KafkaUnavailableError: the cluster does not answer.
    """

    async def of(partition: int) -> list[AuditEvent]:
        found: list[AuditEvent] = []
        async with aclosing(partition_since(bootstrap_servers, OPERATIONS_AUDIT, partition, since_ms)) as batches:
            async for records in batches:
                found += (decode_audit(record.value or b"") for record in records)
        return found

    partitions = await partition_count(bootstrap_servers, [OPERATIONS_AUDIT])
    events = [event for found in await asyncio.gather(*map(of, range(partitions))) for event in found]
    return sorted((event for event in events if event.at_ms >= since_ms), key=lambda event: event.at_ms)


def last_uses(events: Iterable[AuditEvent]) -> dict[KeyName, int]:
    """When each key was last used, milliseconds since 1970 UTC."""
    found: dict[KeyName, int] = {}
    for event in events:
        if isinstance(event, KeyUsed):
            name = event.client, event.key_id
            found[name] = max(found.get(name, 0), event.at_ms)
    return found
