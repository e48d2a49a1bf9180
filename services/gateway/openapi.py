"""The gateway's OpenAPI 3.1 document, made from the structs that decode and encode. Pure.

Invariant: the document has no field, bound or state that the code does not have. What the validator checks beyond the
structs (accounts, currencies, dates) is in descriptions and formats.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from services.gateway.domain import MEDIA_TYPE, Accepted, PaymentState, Refusal, Refused
from shared.events.dead_letters import Reason
from shared.events.fields import account_text
from shared.events.payments import SCHEMA_VERSION, Payment, Reversal
from shared.http.page import VERSION, Document, content, describe_attributes, reference, refusals, schemas

API_VERSION: Final = "1.0.0"

_CURRENCY: Final = {"pattern": "^[A-Z]{3}$", "description": "An active ISO 4217 code."}
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "schema_version": {"enum": [SCHEMA_VERSION], "description": "Version 1 is still read; see above."},
    "payment_id": {"description": "Unique per debtor. Sent again with the same content, it is booked once."},
    "amount_minor": {"description": "In minor units of the currency: 1250 is 12.50 EUR."},
    "currency": _CURRENCY,
    "credit_currency": {"description": "ISO 4217; what the creditor receives, if another currency."},
    "value_date": {"description": "Business date, YYYY-MM-DD; the day of receipt (UTC) if not sent."},
    "reverses": {"description": "The payment_id of the payment to reverse, in full."},
}

PAYMENT_EXAMPLE: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION,
    "payment_id": "2026-000017",
    "debtor": "2378",
    "creditor": "576",
    "amount_minor": 1250,
    "currency": "EUR",
    "reference": "rent",
}
REVERSAL_EXAMPLE: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION,
    "type": "reversal",
    "payment_id": "2026-000018",
    "debtor": "2378",
    "reverses": "2026-000017",
}

_ABOUT: Final = (
    "A payment that is answered with 202 is on all in-sync replicas and will be decided exactly once. Any other "
    "answer, or none, is safe to send again with the same payment_id: a repeat with the same content is recognised. "
    "Fields that are not listed are refused. Schema version 1 (account_from, account_to, memo, occurred_at) is still "
    "read; new clients send the current version."
)


_KEY: Final = "key"
_SCHEMES: Final = {
    _KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "The key that who runs this gateway has given you, as Authorization: Bearer KEY.",
    }
}
_REFUSED_ACCESS: Final = {
    401: "The key is missing, not known or expired.",
    429: "You ask more often than you may. Send it again after the time in Retry-After.",
}


@cache
def document(body_bytes_max: int, partitions: int) -> Document:
    """The whole document. It is made once for the same arguments; do not change it."""
    security: dict[str, Any] = {"security": [{_KEY: []}]}
    return {
        "openapi": VERSION,
        "info": {"title": "once gateway", "version": API_VERSION, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": {
            "/payments": {"post": _post_payment(body_bytes_max) | security},
            "/payments/{payment_id}": {"get": _get_payment(partitions) | security},
        },
        "components": {"schemas": _schemas(partitions), "securitySchemes": _SCHEMES},
    }


def _schemas(partitions: int) -> dict[str, Any]:
    found = schemas((Payment, Reversal, Accepted, PaymentState, Refused))
    account = {"description": f"{account_text(partitions)}."}
    fields = {**_FIELDS, "debtor": account, "creditor": account}
    for name in ("Payment", "Reversal"):
        schema = found[name]
        schema["description"] = schema["description"].partition("\n")[0]
        for field, further in fields.items():
            if field in schema["properties"]:
                schema["properties"][field] |= further
        del schema["properties"]["schema_version"]["default"]
        required = [field for field in schema["required"] if field != "type"]
        schema["required"] = ["schema_version", *required]
    found["Reversal"]["required"].append("type")  # without it, it is a payment
    for name in ("Accepted", "PaymentState", "Refused"):
        describe_attributes(found[name])
    reasons = sorted({*map(str, Reason), *map(str, Refusal)} - {Reason.IDENTITY_CONFLICT, Reason.WRONG_PARTITION})
    found["Refused"]["properties"]["error"]["enum"] = reasons
    return found


def _post_payment(body_bytes_max: int) -> dict[str, Any]:
    location = {"description": "Where the payment's state is had.", "schema": {"type": "string"}}
    refused = refusals(
        {
            400: "The body is no JSON object.",
            408: "The body did not come in time.",
            413: f"The body is above {body_bytes_max} bytes.",
            415: f"The body is not {MEDIA_TYPE} in UTF-8, or is compressed.",
            422: "The object is no payment; the detail says what to change.",
            503: "Kafka cannot take it now, or too many requests are under way. Send it again with its payment_id.",
        }
        | _REFUSED_ACCESS,
        "Refused",
    )
    either = [reference("Payment"), reference("Reversal")]
    return {
        "operationId": "postPayment",
        "summary": "Send a payment, or the reversal of one.",
        "requestBody": {
            "required": True,
            "description": f"At most {body_bytes_max} bytes. The bytes are kept as they are received.",
            "content": {
                MEDIA_TYPE: {
                    "schema": {"oneOf": either},
                    "examples": {
                        "payment": {"value": dict(PAYMENT_EXAMPLE)},
                        "reversal": {"value": dict(REVERSAL_EXAMPLE)},
                    },
                }
            },
        },
        "responses": {
            "202": {
                "description": "On all in-sync replicas. It will be decided exactly once.",
                "headers": {"Location": location},
                "content": content("Accepted"),
            },
            **refused,
        },
    }


def _get_payment(partitions: int) -> dict[str, Any]:
    def parameter(name: str, where: str, schema: dict[str, Any], text: str, example: object) -> dict[str, Any]:
        shown = {"description": text, "example": example}
        return {"name": name, "in": where, "required": True, "schema": schema, **shown}

    number = {"type": "integer", "minimum": 0}
    from_location = "From the Location of the 202."
    refused = refusals(
        {
            400: "The coordinates are missing or are none.",
            404: "No payment of this payment_id stands at these coordinates.",
            503: "The brokers did not answer in time, or too many requests are under way.",
        }
        | _REFUSED_ACCESS,
        "Refused",
    )
    return {
        "operationId": "getPayment",
        "summary": "See how far a payment has come.",
        "parameters": [
            parameter("payment_id", "path", {"type": "string"}, "As sent.", PAYMENT_EXAMPLE["payment_id"]),
            parameter("partition", "query", number | {"maximum": partitions - 1}, from_location, 0),
            parameter("offset", "query", number, from_location, 0),
        ],
        "responses": {"200": {"description": "Its state.", "content": content("PaymentState")}, **refused},
    }
