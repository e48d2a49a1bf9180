"""Since when clients debit their own accounts only: put into force, and recorded."""

import time

from deploy.clients.audit import write_events
from shared.events.audit import OwnershipEnforced
from shared.events.clients import OWNER_UNNAMED
from shared.events.installation import Ownership
from shared.kafka.admin.installation import enforce_ownership, ownership
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import TopicMismatchError


async def enforce(bootstrap_servers: Bootstrap, by: str) -> tuple[Ownership, bool]:
    """Enforce ownership from the present end of payments.raw on, unless it is enforced; no ledger may be at work.

    Args:
        by: the operator, for the audit.

    Returns:
        The offsets in force, and whether they are new.

    Raises KafkaUnavailableError: the cluster does not answer, or did not acknowledge it. Call it again then.
    """
    try:
        return await ownership(bootstrap_servers), False
    except TopicMismatchError:  # not in force
        found = await enforce_ownership(bootstrap_servers)
    at_ms = time.time_ns() // 1_000_000
    event = OwnershipEnforced(client=OWNER_UNNAMED, at_ms=at_ms, by=by, raw_from=found.raw_from)
    await write_events(bootstrap_servers, [event])
    return found, True
