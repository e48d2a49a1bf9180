"""The read side's OpenAPI 3.1 document, made from the structs that read queries and write answers. Pure.

Invariant: the document has no parameter, field or bound that the code does not have.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from services.balances.api import answers, parameters
from services.balances.api.parameters import (
    ACCOUNT_CHARS_MAX,
    EntriesQuery,
    FreshnessQuery,
    PaymentQuery,
    Query,
    Refusal,
    Refused,
    WayQuery,
)
from services.balances.api.v1.answers import STRUCTS, Outcomes, Problem
from services.balances.api.v1.parameters import DatedEntriesQuery, OutcomesQuery
from services.balances.projection.progress import Freshness
from shared.events.fields import HOUSE_ACCOUNTS
from shared.events.partitions import shards_text
from shared.events.payments import MAX_PAYMENT_ID_CHARS
from shared.http.page import VERSION, Document, content, describe_attributes, reference, refusals, schemas
from shared.http.problems import PROBLEM

API_VERSION: Final = "1.1.0"

_ABOUT: Final = (
    "Balances, histories, totals and payments, read from a view of the ledger. The ledger is the truth; the view "
    "follows it, and as_of in each answer says how far it had read: whatever was committed below next_offset is in "
    "the answer. To read what you wrote, name its record with at_least, or wait for your payment with wait. Amounts "
    "are whole minor units: 1250 is 12.50 EUR. Below /v1 they are integers, as in the gateway's API, and refusals are "
    "problems of RFC 9457. A balance may have more digits than a double keeps: read it with a JSON reader that has "
    "integers of any size. Below /api amounts are strings of decimal digits. All paths are for GET and HEAD. "
    "Beyond loopback the view asks for a key with the scope read: Authorization: Bearer KEY, or HTTP Basic with the "
    "key as the password. Without the scope house, a key reads accounts of its client, below /v1."
)

_SHAPES: Final[tuple[type[msgspec.Struct], ...]] = (
    answers.Account,
    answers.Entries,
    answers.Totals,
    answers.Payments,
    answers.Ways,
    Freshness,
    answers.Digest,
    Refused,
    *(STRUCTS[kind] for kind in (answers.Account, answers.Entries, answers.Totals)),
    Outcomes,
    Problem,
)


class _Path(NamedTuple):
    name: str
    chars_max: int
    text: str  # {shards} is replaced by the ends of house accounts
    example: str


class _Operation(NamedTuple):
    """One path's GET."""

    operation_id: str
    summary: str
    query: type[msgspec.Struct]  # struct of its query parameters
    answer: type[msgspec.Struct]  # schema of its 200
    description: str  # of its 200
    path: _Path | None = None  # its path parameter
    missing: str | None = None  # what its 404 means; None if it has none
    examples: Mapping[str, object] = {}  # of query parameters


_ACCOUNT: Final = _Path(
    "account",
    ACCOUNT_CHARS_MAX,
    f"A client's account, or a house account with its partition: {', '.join(HOUSE_ACCOUNTS)}, suspense, "
    "in-transit or fx:CURRENCY with {shards}.",
    "2378",
)
_PAYMENT: Final = _Path("payment_id", MAX_PAYMENT_ID_CHARS, "As its debtor chose it.", "2026-000017")
_NO_ACCOUNT: Final = "No account of this name was opened or posted to, as of as_of."
_V1: Final = "/v1/"

OPERATIONS: Final[Mapping[str, _Operation]] = {
    "/api/accounts/{account}": _Operation(
        "getAccount", "See an account's balances.", Query, answers.Account, "Its state.", _ACCOUNT, _NO_ACCOUNT
    ),
    "/api/accounts/{account}/entries": _Operation(
        "getEntries",
        "See an account's history, page by page.",
        EntriesQuery,
        answers.Entries,
        "A page; an empty one where there are no entries.",
        _ACCOUNT,
        _NO_ACCOUNT,
        {"currency": "EUR", "limit": 20},
    ),
    "/api/payments/{payment_id}": _Operation(
        "getPayments",
        "See what became of a payment.",
        PaymentQuery,
        answers.Payments,
        "At least one payment.",
        _PAYMENT,
        "No payment of this payment_id was posted or declined, as of as_of.",
        {"wait": 5},
    ),
    "/api/payments/{payment_id}/way": _Operation(
        "getWay",
        "See a payment's way through the topics, record by record.",
        WayQuery,
        answers.Ways,
        "At least one way.",
        _PAYMENT,
        "No payment of this payment_id was posted or declined so far.",
    ),
    "/api/totals": _Operation(
        "getTotals",
        "See the totals by currency, and whether money was conserved.",
        Query,
        answers.Totals,
        "The totals.",
    ),
    "/api/freshness": _Operation(
        "getFreshness", "See how far the view is behind the ledger.", FreshnessQuery, Freshness, "How old it is."
    ),
    "/api/digest": _Operation(
        "getDigest",
        "Get one figure for all balances. It reads all of them; one request at a time.",
        Query,
        answers.Digest,
        "The digest, and the positions at which it was computed.",
    ),
    "/v1/accounts/{account}": _Operation(
        "getAccountV1",
        "See an account's balances, owner and version.",
        Query,
        STRUCTS[answers.Account],
        "Its state.",
        _ACCOUNT,
        _NO_ACCOUNT,
    ),
    "/v1/accounts/{account}/entries": _Operation(
        "getEntriesV1",
        "See an account's history by value date, page by page.",
        DatedEntriesQuery,
        STRUCTS[answers.Entries],
        "A page; an empty one where there are no entries.",
        _ACCOUNT,
        _NO_ACCOUNT,
        {"from": "2026-01-01", "to": "2026-01-31"},
    ),
    "/v1/payments": _Operation(
        "getOutcomesV1",
        "See the outcomes of a debtor's payments, reversals and openings, by identity or by value date.",
        OutcomesQuery,
        Outcomes,
        "A page; an empty one where none is known.",
        examples={"debtor": "2378", "payment_id": "2026-000017"},
    ),
    "/v1/totals": _Operation(
        "getTotalsV1",
        "See the totals by currency, and whether money was conserved.",
        Query,
        STRUCTS[answers.Totals],
        "The totals.",
    ),
    "/v1/freshness": _Operation(
        "getFreshnessV1", "See how far the view is behind the ledger.", FreshnessQuery, Freshness, "How old it is."
    ),
    "/v1/digest": _Operation(
        "getDigestV1",
        "Get one figure for all balances. It reads all of them; one request at a time.",
        Query,
        answers.Digest,
        "The digest, and the positions at which it was computed.",
    ),
}


@cache
def document(partitions: int) -> Document:
    """The whole document. It is made once for the same argument; do not change it."""
    return {
        "openapi": VERSION,
        "info": {"title": "once view", "version": API_VERSION, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": {path: {"get": _get(path, operation, partitions)} for path, operation in OPERATIONS.items()},
        "components": {"schemas": _schemas()},
    }


def _schemas() -> dict[str, Any]:
    found = schemas(_SHAPES)
    for schema in found.values():
        if "properties" in schema:
            describe_attributes(schema)
    for name in ("Refused", "Problem"):
        found[name]["properties"]["error"]["enum"] = [reason.value for reason in Refusal]
    return found


def _get(path: str, operation: _Operation, partitions: int) -> dict[str, Any]:
    required = {field.encode_name for field in msgspec.structs.fields(operation.query) if field.required}
    listed = [] if operation.path is None else [_path_parameter(operation.path, partitions)]
    listed += [
        _query_parameter(name, shape, operation.examples, is_required=name in required)
        for name, shape in parameters.properties(operation.query).items()
    ]
    texts = {
        400: "A parameter is unknown or wrong; the detail says what to send.",
        401: "The view asks for keys, and this one is missing, unknown or expired.",
        403: "The key has no scope read, or the account is not of its client.",
        404: operation.missing,
        421: "The Host is not a name of the view.",
        503: "The view's database, the brokers or the monitor do not answer, or too many requests are under way.",
        504: "The view has not read what at_least names within the timeout." if _waits(operation.query) else None,
    }
    return {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "parameters": listed,
        "responses": {
            "200": {"description": operation.description, "content": content(operation.answer.__name__)},
            **_refusals(path, {status: text for status, text in texts.items() if text is not None}),
        },
    }


def _refusals(path: str, texts: Mapping[int, str]) -> dict[str, Any]:
    if not path.startswith(_V1):
        return refusals(texts, "Refused")
    return {
        status: answer | {"content": {PROBLEM: {"schema": reference("Problem")}}}
        for status, answer in refusals(texts, "Problem").items()
    }


def _waits(query: type[msgspec.Struct]) -> bool:
    return "at_least" in query.__struct_fields__


def _path_parameter(path: _Path, partitions: int) -> dict[str, Any]:
    return {
        "name": path.name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": path.chars_max},
        "description": path.text.format(shards=shards_text(partitions)),
        "example": path.example,
    }


def _query_parameter(
    name: str, shape: Mapping[str, Any], examples: Mapping[str, object], *, is_required: bool
) -> dict[str, Any]:
    schema = {key: value for key, value in shape.items() if key != "description"}
    if "anyOf" in schema:  # a parameter that is not sent is no null
        (schema,) = (choice for choice in schema["anyOf"] if choice != {"type": "null"})
    example = {"example": examples[name]} if name in examples else {}
    required = {"required": True} if is_required else {}
    return {"name": name, "in": "query", **required, "schema": schema, "description": shape["description"], **example}
