"""Audit of clients and keys: records of operations.audit, written by `once clients` and the gateway. Pure.

Invariant: no record has a key, a digest of more than its id, or a payload.
"""

import msgspec

from shared.events.codec import decoder
from shared.events.partitions import partition_for


class _Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, kw_only=True):
    client: str  # its name; empty where a request had no known key
    at_ms: int  # milliseconds since 1970 UTC; of counted requests, the last one


class _Command(_Event, frozen=True, kw_only=True):
    by: str  # the operator, user@host


class ClientAdded(_Command, frozen=True, tag="client_added", kw_only=True):
    """An operator added a client, which had no key before."""


class KeyIssued(_Command, frozen=True, tag="key_issued", kw_only=True):
    """An operator issued a key for a client."""

    key_id: str  # 16 hex digits
    scopes: tuple[str, ...]
    expires_at_ms: int | None = None  # milliseconds since 1970 UTC; None for never


class KeyRevoked(_Command, frozen=True, tag="key_revoked", kw_only=True):
    """An operator revoked a key."""

    key_id: str


class OwnershipEnforced(_Command, frozen=True, tag="ownership_enforced", kw_only=True):
    """An operator had ownership enforced; `client` is the owner of the accounts from before."""

    raw_from: tuple[int, ...]  # the first offset for which a client is needed, for each partition of payments.raw


class _Requests(_Event, frozen=True, kw_only=True):
    key_id: str  # empty where a request had no known key
    requests: int  # how many, 1 or more
    since_ms: int  # the first one, milliseconds since 1970 UTC
    instance: str = "0"  # of the gateway


class KeyUsed(_Requests, frozen=True, tag="key_used", kw_only=True):
    """Requests that the gateway admitted by a key."""


class RequestsRefused(_Requests, frozen=True, tag="requests_refused", kw_only=True):
    """Requests that the gateway refused with 401, 403 or 429."""

    route: str  # the template, such as /payments/{payment_id}
    reason: str


AuditEvent = ClientAdded | KeyIssued | KeyRevoked | OwnershipEnforced | KeyUsed | RequestsRefused

encode_audit = msgspec.json.Encoder().encode
decode_audit = decoder(AuditEvent)


def placed(event: AuditEvent, partitions: int) -> tuple[int, bytes, bytes]:
    """The partition, key and value of an event's record."""
    return partition_for(event.client, partitions), event.client.encode(), encode_audit(event)
