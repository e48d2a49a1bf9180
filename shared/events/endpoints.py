"""Endpoints of effects that fail or are disabled: reference data that outbox and operators write. Pure."""

from enum import StrEnum

import msgspec

from shared.events.codec import decoder


class EndpointState(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"  # gets no calls; its effects go to effects.dead-letter


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an endpoint: a record of reference.endpoints under its name. Without a record it is enabled.

    Attributes:
        at_ms: when it came to this state, since 1970 UTC, likewise the other times.
        failing_since_ms: the first of its failures without a success between them; 0 if the last call was accepted, or
            it was enabled since.
        by: `outbox` or `operator`.
    """

    state: str  # an EndpointState
    at_ms: int
    failing_since_ms: int = 0
    by: str = "outbox"
    detail: str = ""  # what the endpoint said last, or an operator's reason


encode_endpoint = msgspec.json.Encoder().encode
decode_endpoint = decoder(Endpoint)
