"""The gateway's OpenAPI 3.1 document, made from the structs that decode and encode. Pure.

Invariant: the document has no field, bound or state that the code does not have. What the validator checks beyond the
structs (accounts, currencies, dates) is in descriptions and formats.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from services.gateway.answers import Accepted, Item, Items, OpeningAccepted, Outcome, PaymentState
from services.gateway.commands import BATCH_PAYMENTS_MAX, KEY_HEADER, OpeningRequest
from services.gateway.domain import MEDIA_TYPE, Refusal
from services.gateway.outcomes import WAIT_S_MAX
from shared.events.dead_letters import Reason
from shared.events.fields import account_text
from shared.events.payments import MAX_PAYMENT_ID_CHARS, SCHEMA_VERSION, Payment, Reversal
from shared.http.page import RETRY_AFTER, VERSION, Document, content, describe_attributes, reference, refusals, schemas
from shared.http.problems import PROBLEM, Problem, Refused

API_VERSION: Final = "1.1.0"

_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "schema_version": {"enum": [SCHEMA_VERSION], "description": "Version 1 is still read; see above."},
    "payment_id": {"description": "Unique per debtor. Sent again with the same content, it is booked once."},
    "amount_minor": {"description": "In minor units of the currency: 1250 is 12.50 EUR."},
    "currency": {"pattern": "^[A-Z]{3}$", "description": "An active ISO 4217 code."},
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
OPENING_EXAMPLE: Final[Mapping[str, Any]] = {"account": "2378", "command_id": "open-2378"}
_INSTRUCTIONS: Final = {"payment": dict(PAYMENT_EXAMPLE), "reversal": dict(REVERSAL_EXAMPLE)}

_ABOUT: Final = (
    "A payment that is answered with 202 is on all in-sync replicas and will be decided exactly once. After any other "
    "answer, or none, send it again with the same payment_id. A repeat is recognised within the window of each "
    "partition, which counts payments, not time: docs/api.md says how long that is. A client debits only its own "
    "accounts. Amounts are integers of minor units. Fields that are not listed are refused. Schema version 1 "
    "(account_from, account_to, memo, occurred_at) is still read; new clients send the current version. The paths "
    "outside of /v1 are for former clients."
)

_KEY: Final = "key"
_SCHEMES: Final = {
    _KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "The key that the operator has issued to you, as Authorization: Bearer KEY.",
    }
}
_REFUSED: Final = {
    401: "The key is missing, not known or expired.",
    403: "The key or its client may not do this; the detail says what to change.",
    421: "The gateway is not known by the name in Host.",
    429: "You ask more often than you may. Send it again after the time in Retry-After.",
}


@cache
def document(body_bytes_max: int, batch_bytes_max: int, partitions: int) -> Document:
    """The whole document. It is made once for the same arguments; do not change it."""
    paths: dict[str, dict[str, dict[str, Any]]] = {
        "/v1/payments": {"post": _post_payment(body_bytes_max, v1=True)},
        "/v1/payments/batch": {"post": _post_batch(batch_bytes_max)},
        "/v1/payments/{payment_id}": {"get": _get_payment_v1()},
        "/v1/accounts": {"post": _post_account(body_bytes_max)},
        "/payments": {"post": _post_payment(body_bytes_max, v1=False)},
        "/payments/{payment_id}": {"get": _get_payment(partitions)},
    }
    for methods in paths.values():
        for operation in methods.values():
            operation["security"] = [{_KEY: []}]
    return {
        "openapi": VERSION,
        "info": {"title": "once gateway", "version": API_VERSION, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(partitions), "securitySchemes": _SCHEMES},
    }


def _schemas(partitions: int) -> dict[str, Any]:
    answers = (Accepted, OpeningAccepted, Item, Items, Outcome, PaymentState, Problem, Refused)
    found = schemas((Payment, Reversal, OpeningRequest, *answers))
    account = {"description": f"{account_text(partitions)}."}
    fields = {**_FIELDS, "debtor": account, "creditor": account}
    for name in ("Payment", "Reversal"):
        schema = found[name]
        schema["description"] = schema["description"].partition("\n")[0]
        for field, further in fields.items():
            if field in schema["properties"]:
                schema["properties"][field] |= further
        del schema["properties"]["schema_version"]["default"]
        required = [field for field in schema["required"] if field not in {"type", "payment_id"}]
        schema["required"] = ["schema_version", *required]
    found["Reversal"]["required"].append("type")  # without it, it is a payment
    for struct in (OpeningRequest, *answers):
        describe_attributes(found[struct.__name__])
    reasons = sorted({*map(str, Reason), *map(str, Refusal)} - {Reason.IDENTITY_CONFLICT, Reason.WRONG_PARTITION})
    for name in ("Refused", "Problem"):
        found[name]["properties"]["error"]["enum"] = reasons
    found["Batch"] = {
        "type": "object",
        "description": "Payments and reversals, each answered by itself.",
        "properties": {
            "payments": {
                "type": "array",
                "minItems": 1,
                "maxItems": BATCH_PAYMENTS_MAX,
                # Anything else is answered in its place, and does not refuse the batch
                "items": {"anyOf": [reference("Payment"), reference("Reversal"), {}]},
                "description": f"1 to {BATCH_PAYMENTS_MAX:,} of them.",
            }
        },
        "required": ["payments"],
        "additionalProperties": False,
    }
    return found


def _body(text: str, shapes: tuple[str, ...], examples: Mapping[str, Any]) -> dict[str, Any]:
    schema = reference(shapes[0]) if len(shapes) == 1 else {"oneOf": [reference(shape) for shape in shapes]}
    shown = {name: {"value": value} for name, value in examples.items()}
    return {"required": True, "description": text, "content": {MEDIA_TYPE: {"schema": schema, "examples": shown}}}


def _answer(text: str, shape: str, headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"description": text, "content": content(shape)} | ({"headers": dict(headers)} if headers else {})


def _location(text: str) -> dict[str, Any]:
    return {"Location": {"description": text, "schema": {"type": "string"}}}


def _refused_writes(bytes_max: int, unprocessable: str) -> dict[int, str]:
    return _REFUSED | {
        400: "The body is not a JSON object.",
        408: "The body did not come in time.",
        413: f"The body is above {bytes_max} bytes.",
        415: f"The body is not {MEDIA_TYPE} in UTF-8, or is compressed.",
        422: unprocessable,
        503: "Kafka cannot take it now, or too many requests are under way. Send it again as it is.",
    }


def _problems(texts: Mapping[int, str]) -> dict[str, Any]:
    return refusals(texts, "Problem", PROBLEM)


def _parameter(
    name: str, where: str, schema: dict[str, Any], text: str, *, example: object = None, required: bool = True
) -> dict[str, Any]:
    shown = {} if example is None else {"example": example}
    return {"name": name, "in": where, "required": required, "schema": schema, "description": text, **shown}


def _idempotency_key(name: str) -> dict[str, Any]:
    return _parameter(
        KEY_HEADER,
        "header",
        {"type": "string", "minLength": 1, "maxLength": MAX_PAYMENT_ID_CHARS},
        f"The {name}, if the body has none. If both are sent, they must be the same.",
        required=False,
    )


_PAYMENT_ID: Final = _parameter(
    "payment_id", "path", {"type": "string"}, "As sent.", example=PAYMENT_EXAMPLE["payment_id"]
)


def _post_payment(body_bytes_max: int, *, v1: bool) -> dict[str, Any]:
    texts = _refused_writes(body_bytes_max, "The object is not a payment; the detail says what to change.")
    kept = f"At most {body_bytes_max} bytes. They are kept as they are received"
    location = _location("Path of its outcome." if v1 else "Where the payment's state is had.")
    accepted = {"202": _answer("On all in-sync replicas. It will be decided exactly once.", "Accepted", location)}
    if not v1:
        return {
            "operationId": "postPayment",
            "summary": f"As POST /v1/payments, for former clients: {KEY_HEADER} is ignored.",
            "requestBody": _body(f"{kept}.", ("Payment", "Reversal"), _INSTRUCTIONS),
            "responses": accepted | refusals(texts, "Refused"),
        }
    kept += f"; a payment without payment_id gets the {KEY_HEADER} as its own."
    return {
        "operationId": "postPaymentV1",
        "summary": "Send a payment, or the reversal of one. Needs the scope payments:write.",
        "parameters": [_idempotency_key("payment_id")],
        "requestBody": _body(kept, ("Payment", "Reversal"), _INSTRUCTIONS),
        "responses": accepted | _problems(texts),
    }


def _post_batch(batch_bytes_max: int) -> dict[str, Any]:
    return {
        "operationId": "postBatchV1",
        "summary": f"Send 1 to {BATCH_PAYMENTS_MAX:,} payments and reversals. Needs the scope payments:write.",
        "requestBody": _body(
            f"At most {batch_bytes_max} bytes. A payment that is refused does not refuse the others.",
            ("Batch",),
            {"two payments": {"payments": list(_INSTRUCTIONS.values())}},
        ),
        "responses": {
            "207": _answer(
                "An answer for each payment. Send again those with status 503, after the time in Retry-After.",
                "Items",
                RETRY_AFTER,
            )
        }
        | _problems(_refused_writes(batch_bytes_max, "It is not a batch; the detail says what to change.")),
    }


def _post_account(body_bytes_max: int) -> dict[str, Any]:
    return {
        "operationId": "postAccountV1",
        "summary": "Open an account, or give an own one new terms. Needs the scope accounts:write.",
        "parameters": [_idempotency_key("command_id")],
        "requestBody": _body(f"At most {body_bytes_max} bytes.", ("OpeningRequest",), {"it": dict(OPENING_EXAMPLE)}),
        "responses": {"202": _answer("On all in-sync replicas.", "OpeningAccepted", _location("Path of its outcome."))}
        | _problems(_refused_writes(body_bytes_max, "The object opens no account; the detail says what to change.")),
    }


def _get_payment_v1() -> dict[str, Any]:
    wait = {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0}
    return {
        "operationId": "getPaymentV1",
        "summary": "Get the outcome of a payment, a reversal or an opening. Needs the scope read.",
        "parameters": [
            _PAYMENT_ID,
            _parameter(
                "debtor",
                "query",
                {"type": "string"},
                "The account that it debits, or the account to open; an own one.",
                example=PAYMENT_EXAMPLE["debtor"],
            ),
            _parameter("wait", "query", wait, "Seconds to wait at most for the outcome.", example=30, required=False),
        ],
        "responses": {"200": _answer("Its outcome; of a repeat, the first one's.", "Outcome")}
        | _problems(
            _REFUSED
            | {
                400: "A parameter is missing or has no such value.",
                404: "No outcome is known yet.",
                503: "The view does not answer, or too many requests are under way.",
            }
        ),
    }


def _get_payment(partitions: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 0}
    from_location = "From the Location of the 202."
    return {
        "operationId": "getPayment",
        "summary": "See how far a raw record has come. It searches the topics, and does not wait.",
        "parameters": [
            _PAYMENT_ID,
            _parameter("partition", "query", number | {"maximum": partitions - 1}, from_location, example=0),
            _parameter("offset", "query", number, from_location, example=0),
        ],
        "responses": {"200": _answer("Its state.", "PaymentState")}
        | refusals(
            _REFUSED
            | {
                400: "The coordinates are missing or are none.",
                404: "No payment of this payment_id, of yours, has these coordinates.",
                503: "The brokers did not answer in time, or too many requests are under way.",
            },
            "Refused",
        ),
    }
