"""What a machine is told of an effect: the JSON body of a webhook, and the line in a file. Pure.

What holds: the same request gives the same bytes, so every try of an effect is the same message.
"""

import msgspec

from shared.events.effects import EffectRequest

MEDIA_TYPE = "application/json"


class EffectBody(msgspec.Struct, frozen=True):
    """One effect as its receiver sees it; the fields are those of EffectRequest, all of them always there.

    How it travels is left out: a receiver knows its own address, and the order is what it gets.
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
    """The request as one JSON object on one line, without a line's end."""
    return _encoder.encode(
        EffectBody(
            effect_id=request.effect_id,
            kind=request.kind,
            event=request.event,
            account=request.account,
            payment_id=request.payment_id,
            debtor=request.debtor,
            creditor=request.creditor,
            amount_minor=request.amount_minor,
            currency=request.currency,
            fee_minor=request.fee_minor,
            value_date=request.value_date,
            reason=request.reason,
            reversal=request.reversal,
            reference=request.reference,
        )
    )
