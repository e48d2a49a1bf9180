"""The JSON of an effect: the body of a webhook, and the line in a file. Pure.

Invariant: the same request gives the same bytes, so every try of an effect is the same message.
"""

import msgspec

from shared.events.effects import EffectRequest

MEDIA_TYPE = "application/json"


class EffectBody(msgspec.Struct, frozen=True):
    """One effect as its receiver sees it: fields of EffectRequest, always all of them.

    The others are left out: a receiver knows its own address, and the order is the one in which it receives.
    """

    effect_id: str
    kind: str
    event: str
    account: str
    payment_id: str
    debtor: str
    creditor: str
    amount_minor: int | None
    currency: str | None
    fee_minor: int
    value_date: str
    reason: str | None
    reversal: bool
    reference: str


_encoder = msgspec.json.Encoder()


def encode_body(request: EffectRequest) -> bytes:
    """Encode the request as one JSON object on one line, without a line end."""
    return _encoder.encode(msgspec.convert(request, EffectBody, from_attributes=True))
