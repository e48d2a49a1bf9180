"""The installation's id on a cluster: made once with the topics, and read by services and checks at their start.

Invariant: makers that run at once agree, because each reads the topic again after it has written.
"""

import time
import uuid

from shared.eos.records import Record
from shared.events.catalogue import INSTALLATION
from shared.events.installation import PARTITION, Installation, decode_installation, encode_installation
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import TopicMismatchError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_partition


async def ensure_installation(bootstrap_servers: Bootstrap) -> str:
    """Return the installation's id, made now if there is none. The topic must exist.

    Raises KafkaUnavailableError: the cluster does not answer, or did not acknowledge the new id. Call it again then.
    """
    found = await _first(bootstrap_servers)
    if found is None:
        made = Installation(uuid.uuid4().hex, time.time_ns() // 1_000_000)
        async with IdempotentWriter(bootstrap_servers, client_id="once-installation") as writer:
            await writer.send(INSTALLATION, PARTITION, made.id.encode(), encode_installation(made))
    return await installation_id(bootstrap_servers)


async def installation_id(bootstrap_servers: Bootstrap) -> str:
    """Return the installation's id.

    Raises:
        TopicMismatchError: the cluster has none; the message says how it is made.
        KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    found = await _first(bootstrap_servers)
    if found is None:
        raise TopicMismatchError(
            f"{INSTALLATION} has no id of the installation: make it with `once up`, or with the deployment's `topics`"
        )
    return found.id


async def _first(bootstrap_servers: Bootstrap) -> Installation | None:
    found: list[Record] = []
    await read_partition(bootstrap_servers, INSTALLATION, PARTITION, found.extend)
    return decode_installation(found[0].value or b"") if found else None
