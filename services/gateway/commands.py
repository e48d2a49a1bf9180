"""Requests of /v1 as records of payments.raw: idempotency keys, batches, openings of accounts. Pure.

Invariant: a payment's bytes are kept as they are received. The one exception is a payment without payment_id, which is
sent with an Idempotency-Key: that key is put in front of its fields as the payment_id.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta

from services.gateway import domain
from services.gateway.domain import Placement, Refusal, RefusedError
from shared.events.dead_letters import Reason
from shared.events.fields import shown
from shared.events.payments import MAX_AMOUNT_MINOR, MAX_PAYMENT_ID_CHARS, SCHEMA_VERSION, AccountOpening, PaymentId

BATCH_PAYMENTS_MAX: Final = 1_000
KEY_HEADER: Final = "Idempotency-Key"

_WHITESPACE: Final = b" \t\r\n"


class OpeningRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account to open, or an own account to give new terms.

    Attributes:
        account: a client's account, never a house account.
        overdraft_minor: how far below zero each currency may go, in minor units; null is unlimited. Any other value
            than 0 needs the scope house.
        expected_version: the ledger declines the command if the account has another version; null is any.
        owner: a client; null for the one that sends it. Another one needs the scope house.
        command_id: unique per account among its payments and commands; the Idempotency-Key, where it is left out.
    """

    account: str
    overdraft_minor: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MINOR)] | None = 0
    expected_version: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MINOR)] | None = None
    owner: str | None = None
    command_id: PaymentId | None = None


_Payments = msgspec.defstruct(
    "_Payments",
    [(f"payment_{number}", msgspec.Raw, UNSET) for number in range(BATCH_PAYMENTS_MAX)],
    array_like=True,
    forbid_unknown_fields=True,
)
"""An array of payments. Unlike that of a list, its bound ends the decoding at the first payment too many: a body has
room for millions of small values, each of which would take more memory than bytes."""
_Batch = msgspec.defstruct("_Batch", [("payments", _Payments)], forbid_unknown_fields=True)


_decode_batch: Callable[[bytes], Any] = msgspec.json.Decoder(_Batch).decode
_decode_any = msgspec.json.Decoder().decode


def idempotency_key(values: Sequence[str]) -> str | None:
    """Return the key of a request with these Idempotency-Key headers; None if it has none.

    It may be in double quotes, as in the draft of the header's standard. Raises RefusedError if it is not a payment_id.
    """
    if not values:
        return None
    key = values[0].strip()
    if len(key) > 1 and key.startswith('"') and key.endswith('"'):
        key = key[1:-1]
    if len(values) > 1 or not (1 <= len(key) <= MAX_PAYMENT_ID_CHARS and key.isascii() and key.isprintable()):
        raise RefusedError(
            Refusal.IDEMPOTENCY_KEY_INVALID,
            f"send one {KEY_HEADER} of 1 to {MAX_PAYMENT_ID_CHARS} printable ASCII characters, or none",
        )
    return key


def with_payment_id(body: bytes, key: str | None) -> bytes:
    """Return a payment's body with a payment_id: its own, else the key.

    Raises RefusedError if both are there and differ. A body of another form is returned as it is.
    """
    if key is None:
        return body
    try:
        sent = domain.decode_named(body).payment_id
    except (ValueError, RecursionError):
        return body
    if sent is UNSET:
        fields = body.index(b"{") + 1
        comma = b"" if body[fields:].lstrip(_WHITESPACE).startswith(b"}") else b","
        return b'%b"payment_id":%b%b%b' % (body[:fields], msgspec.json.encode(key), comma, body[fields:])
    _raise_if_other(sent, key, "payment_id")
    return body


def _raise_if_other(sent: object, key: str, name: str) -> None:
    if sent != key:
        raise RefusedError(
            Refusal.IDEMPOTENCY_KEY_CONFLICT,
            f"{KEY_HEADER} and {name} differ: send the same value in both, or only one of them",
        )


def batch(body: bytes) -> list[bytes]:
    """Return the payments of a batch, each as its bytes; RefusedError if the body has another form."""
    try:
        found = msgspec.structs.astuple(_decode_batch(body).payments)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            Refusal.BATCH_INVALID,
            f'{error}: send one JSON object, {{"payments": [...]}}'.encode("ascii", "replace").decode(),
        ) from error
    payments = [bytes(payment) for payment in found if payment is not UNSET]
    if not payments:
        raise RefusedError(Refusal.BATCH_INVALID, f"the batch has no payments: send 1 to {BATCH_PAYMENTS_MAX:,}")
    return payments


def opening(body: bytes, key: str | None, partitions: int) -> tuple[AccountOpening, Placement, bytes]:
    """Return the command to open an account, its place, and the value of its record.

    Raises RefusedError if the body has another form than OpeningRequest, or names another command_id than the key.
    """
    fields = _fields(body, partitions)
    unknown = fields.keys() - set(OpeningRequest.__struct_fields__)
    if unknown:
        known = ", ".join(OpeningRequest.__struct_fields__)
        raise RefusedError(Reason.FIELD_UNKNOWN, f"{shown(min(unknown))} is not a field of it; its fields are {known}")
    command_id = fields.pop("command_id", None)
    if key is not None and command_id is not None:
        _raise_if_other(command_id, key, "command_id")
    command = {"payment_id": key if command_id is None else command_id, "debtor": fields.pop("account", None)}
    for sent, name in (("account", "debtor"), (f"command_id or {KEY_HEADER}", "payment_id")):
        if command[name] is None:
            raise RefusedError(Reason.FIELD_MISSING, f"{sent} is missing: send account, and command_id or {KEY_HEADER}")
    value = msgspec.json.encode({"schema_version": SCHEMA_VERSION, "type": "account_opening", **command, **fields})
    try:
        instruction = domain.decode(value, partitions)
    except RefusedError as error:
        detail = error.detail.replace("debtor", "account", 1).replace("payment_id", "command_id", 1)
        raise RefusedError(error.reason, detail) from error
    if not isinstance(instruction, AccountOpening):
        raise TypeError("an opening has the type account_opening")
    return instruction, domain.placement_of(instruction, partitions), value


def _fields(body: bytes, partitions: int) -> dict[str, Any]:
    try:
        fields = _decode_any(body)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return fields
    domain.decode(body, partitions)  # raises for the exact reason, as of a payment
    raise TypeError("an instruction is a JSON object")
