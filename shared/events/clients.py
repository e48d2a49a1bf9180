"""Clients and their scopes, and who submitted a payment. Pure.

A client owns accounts, and its keys debit only these. The raw record of a payment names the client and the key in its
header `submitted-by`. Anyone who may write payments.raw is trusted to name them: the gateway, which checks keys, and
operators' commands. The ledger decides by the name.

Accounts that were not opened for a client, and raw records from before ownership was enforced, belong to OPERATOR.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

from shared.events.headers import SUBMITTED_BY, Headers

CLIENT_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEY_ID_PATTERN: Final = re.compile(r"[0-9a-f]{16}")

_HEADER: Final = re.compile(
    rf"(?P<client>{CLIENT_PATTERN.pattern}):(?P<key_id>(?:{KEY_ID_PATTERN.pattern})?)(?P<house>:house)?"
)
_HEADER_BYTES_MAX: Final = 64 + 17 + len(":house")
"""A longer value is malformed, and is not kept: thousands of values are remembered."""


class Scope(StrEnum):
    """What a key may do."""

    PAYMENTS_WRITE = "payments:write"  # debit accounts of its client
    ACCOUNTS_WRITE = "accounts:write"  # open accounts for its client
    READ = "read"
    HOUSE = "house"  # debit house accounts, and open accounts with an overdraft or for another client


class SubmittedBy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who submitted a payment, in JSON [client, key_id, house].

    Attributes:
        client: name of the client.
        key_id: of the key that was used, 16 hex digits; empty for an operator's command, which needs no key.
        house: whether the key has the scope HOUSE.
    """

    client: str
    key_id: str = ""
    house: bool = False


OWNER_UNNAMED: Final = "operator"
"""The client that owns every account without another owner."""
OPERATOR: Final = SubmittedBy(OWNER_UNNAMED, "", True)


def is_client(text: str) -> bool:
    """Whether it is a valid name of a client: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit."""
    return CLIENT_PATTERN.fullmatch(text) is not None


def encode_submitted_by(submitted_by: SubmittedBy) -> bytes:
    """Encode the value of the header `submitted-by`: `client:key_id`, and `:house` after it where the key may that."""
    house = ":house" if submitted_by.house else ""
    return f"{submitted_by.client}:{submitted_by.key_id}{house}".encode()


BY_OPERATOR: Final[Headers] = ((SUBMITTED_BY, encode_submitted_by(OPERATOR)),)
"""Headers of a raw record that an operator's command writes."""


def decode_submitted_by(value: bytes | None) -> SubmittedBy | None:
    """Decode the header's value. Any other form, or no header, names no client: the ledger declines such a payment."""
    return None if value is None or len(value) > _HEADER_BYTES_MAX else _decode(value)


@lru_cache(maxsize=4096)
def _decode(value: bytes) -> SubmittedBy | None:
    try:
        found = _HEADER.fullmatch(value.decode())
    except UnicodeDecodeError:
        return None
    return None if found is None else SubmittedBy(found["client"], found["key_id"], found["house"] is not None)
