"""The installation's id and its record `ownership`, read by services and checks at their start.

Invariant: makers that run at once agree, because each reads the topic again after it has written.
"""

import time
import uuid

from shared.eos.records import Record
from shared.events.catalogue import INSTALLATION, PAYMENTS_RAW
from shared.events.installation import (
    OWNERSHIP_KEY,
    PARTITION,
    Installation,
    Ownership,
    decode_installation,
    decode_ownership,
    encode_installation,
    encode_ownership,
)
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import TopicMismatchError
from shared.kafka.client.idempotent import ACKNOWLEDGED_S, IdempotentWriter
from shared.kafka.client.reader import end_offsets, read_partition


async def ensure_installation(bootstrap_servers: Bootstrap, timeout_s: float = ACKNOWLEDGED_S) -> str:
    """Return the installation's id, made now if there is none. The topics must exist.

    Where payments.raw is empty, ownership is enforced from its first record on.

    Args:
        timeout_s: seconds until a new record must be acknowledged; in topics just created it waits for their replicas.

    Raises KafkaUnavailableError: the cluster does not answer, or did not acknowledge a new record. Call it again then.
    """
    ids, ownerships = await _records(bootstrap_servers)
    if not ids:
        made = Installation(uuid.uuid4().hex, _now_ms())
        await _write(bootstrap_servers, made.id.encode(), encode_installation(made), timeout_s)
    if ownerships or not any((await end_offsets(bootstrap_servers, [PAYMENTS_RAW])).values()):
        await enforce_ownership(bootstrap_servers, timeout_s)
    return await installation_id(bootstrap_servers)


async def installation_id(bootstrap_servers: Bootstrap) -> str:
    """Return the installation's id.

    Raises:
        TopicMismatchError: the cluster has none; the message says how it is made.
        KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    ids, _ = await _records(bootstrap_servers)
    if not ids:
        raise TopicMismatchError(
            f"{INSTALLATION} has no id of the installation: make it with `once up`, or with the deployment's `topics`"
        )
    return decode_installation(ids[0].value or b"").id


async def ownership(bootstrap_servers: Bootstrap) -> Ownership:
    """Return the offsets of payments.raw from which on ownership is enforced.

    Raises:
        TopicMismatchError: there are none; the message says how they are made.
        KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    _, found = await _records(bootstrap_servers)
    if not found:
        raise TopicMismatchError(
            f"{INSTALLATION} does not say from which payment on clients own accounts: stop the ledger, then run "
            "`once clients enforce`, which assigns all payments so far to the operator"
        )
    return decode_ownership(found[0].value or b"")


async def enforce_ownership(bootstrap_servers: Bootstrap, timeout_s: float = ACKNOWLEDGED_S) -> Ownership:
    """Enforce ownership from the present end of payments.raw on, unless it is enforced already.

    Returns the offsets in force. No ledger may be at work: it would decide by another record than those after it.

    Args:
        timeout_s: seconds until a record must be acknowledged.

    Raises KafkaUnavailableError: the cluster does not answer, or did not acknowledge the record. Call it again then.
    """
    _, found = await _records(bootstrap_servers)
    if not found:
        ends = await end_offsets(bootstrap_servers, [PAYMENTS_RAW])
        made = Ownership(tuple(ends[PAYMENTS_RAW, partition] for partition in range(len(ends))), _now_ms())
        await _write(bootstrap_servers, OWNERSHIP_KEY, encode_ownership(made), timeout_s)
        _, found = await _records(bootstrap_servers)
    while found[-1].value != found[0].value:  # of another maker: compaction keeps the last record
        await _write(bootstrap_servers, OWNERSHIP_KEY, found[0].value or b"", timeout_s)
        _, found = await _records(bootstrap_servers)
    return decode_ownership(found[0].value or b"")


async def _records(bootstrap_servers: Bootstrap) -> tuple[list[Record], list[Record]]:
    """Return the records with an id, and the records `ownership`, each in their order."""
    found: list[Record] = []
    await read_partition(bootstrap_servers, INSTALLATION, PARTITION, found.extend)
    ids = [record for record in found if record.key != OWNERSHIP_KEY]
    return ids, [record for record in found if record.key == OWNERSHIP_KEY]


async def _write(bootstrap_servers: Bootstrap, key: bytes, value: bytes, timeout_s: float) -> None:
    async with IdempotentWriter(
        bootstrap_servers, client_id="once-installation", request_timeout_s=timeout_s
    ) as writer:
        await writer.send(INSTALLATION, PARTITION, key, value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
