"""Records that ingest refuses, one of each kind, made from the fields of a valid payment. Pure."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

Fields = dict[str, Any]


def _with(**changes: object) -> Callable[[Fields], bytes]:
    return lambda fields: msgspec.json.encode(fields | changes)


def _without(name: str) -> Callable[[Fields], bytes]:
    return lambda fields: msgspec.json.encode({key: value for key, value in fields.items() if key != name})


def _more(fields: Fields) -> bytes:
    return msgspec.json.encode(fields | {"amount_minor": fields["amount_minor"] + 1})


CONFLICT: Final = "conflict"
"""Valid by itself: another amount under the identity of a payment that was accepted."""

BAD_RECORDS: Final[dict[str, Callable[[Fields], bytes]]] = {
    "not-utf8": lambda fields: msgspec.json.encode(fields | {"reference": "?"}).replace(b'"?"', b'"\xc3\x28"'),
    "not-json": lambda fields: msgspec.json.encode(fields)[:-1],
    "no-payment-id": _without("payment_id"),
    "no-debtor": _without("debtor"),
    "zero": _with(amount_minor=0),
    "negative": _with(amount_minor=-100),
    "float": _with(amount_minor=12.5),
    "unknown-currency": _with(currency="ZZZ"),
    "unknown-schema-version": _with(schema_version=99),
    CONFLICT: _more,
}
"""One bad record of each kind, made from a payment's fields."""
