"""Effect requests for the sinks' tests."""

from shared.events.effects import EffectKind, EffectRequest


def effect(number: int, destination: str, **changes: object) -> EffectRequest:
    """A request with an effect_id made of its number; `changes` are further fields."""
    fields: dict[str, object] = {
        "effect_id": f"{number:032x}",
        "kind": EffectKind.RECEIPT,
        "event": "debit",
        "destination": destination,
        "account": "2378",
        "payment_id": f"p-{number}",
        "debtor": "2378",
        "creditor": "576",
        "value_date": "1993-01-01",
        "amount_minor": -1250,
        "currency": "EUR",
        "fee_minor": 10,
        "reference": "rent",
    }
    return EffectRequest(**{**fields, **changes})  # type: ignore[arg-type]
