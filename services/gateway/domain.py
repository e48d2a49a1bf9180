"""The gateway's decision about the form of a request. Pure.

Invariant: a payment is admitted if the validator that the gateway shares with ingest accepts it, so ingest never
refuses the form of a payment that the gateway accepted. Every refusal says what to change.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from shared.events.dead_letters import Reason
from shared.events.fields import is_number
from shared.events.partitions import partition_for
from shared.events.payments import AccountOpening, Instruction
from shared.events.validation import InvalidPaymentError, decode_payment
from shared.http.keys import Principal
from shared.http.problems import Problem, Refused, problem

MEDIA_TYPE = "application/json"


class Refusal(StrEnum):
    """Reasons to refuse a request, beyond the Reasons of a payment."""

    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BODY_INCOMPLETE = "body_incomplete"
    BUSY = "busy"
    KAFKA_UNAVAILABLE = "kafka_unavailable"
    COORDINATES_INVALID = "coordinates_invalid"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    KEY_MISSING = "key_missing"
    KEY_UNKNOWN = "key_unknown"
    KEY_EXPIRED = "key_expired"
    RATE_EXCEEDED = "rate_exceeded"
    NOT_AUTHORISED = "not_authorised"
    HOST_UNKNOWN = "host_unknown"
    PARAMETER_INVALID = "parameter_invalid"
    IDEMPOTENCY_KEY_INVALID = "idempotency_key_invalid"
    IDEMPOTENCY_KEY_CONFLICT = "idempotency_key_conflict"
    BATCH_INVALID = "batch_invalid"
    VIEW_UNAVAILABLE = "view_unavailable"


STATUS: Mapping[Reason | Refusal, int] = {
    Reason.NOT_UTF8: 400,
    Reason.NOT_JSON: 400,
    Reason.NOT_AN_OBJECT: 400,
    Reason.TOO_LARGE: 413,
    Refusal.UNSUPPORTED_MEDIA_TYPE: 415,
    Refusal.BODY_INCOMPLETE: 408,
    Refusal.BUSY: 503,
    Refusal.KAFKA_UNAVAILABLE: 503,
    Refusal.COORDINATES_INVALID: 400,
    Refusal.NOT_FOUND: 404,
    Refusal.METHOD_NOT_ALLOWED: 405,
    Refusal.KEY_MISSING: 401,
    Refusal.KEY_UNKNOWN: 401,
    Refusal.KEY_EXPIRED: 401,
    Refusal.RATE_EXCEEDED: 429,
    Refusal.NOT_AUTHORISED: 403,
    Refusal.HOST_UNKNOWN: 421,
    Refusal.PARAMETER_INVALID: 400,
    Refusal.VIEW_UNAVAILABLE: 503,
}
"""HTTP status by reason. A reason that is not here means a well-formed object of another form: 422."""


class RefusedError(Exception):
    """A request that gets no 2xx. Its reason decides the status, its detail says what to change."""

    def __init__(
        self,
        reason: Reason | Refusal,
        detail: str,
        *,
        retry_after_s: int | None = None,
        principal: Principal | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.principal = principal  # of a request whose key is known and was not admitted
        self.retry_after_s = retry_after_s  # seconds until the same request may be admitted

    @property
    def status(self) -> int:
        return STATUS.get(self.reason, 422)

    @property
    def body(self) -> Refused:
        return Refused(self.reason.value, self.detail)

    @property
    def problem(self) -> Problem:
        return problem(self.status, self.reason.value, self.detail)


class Placement(NamedTuple):
    """The place of an instruction in payments.raw."""

    payment_id: str
    debtor: str
    partition: int

    @property
    def key(self) -> bytes:
        """Of the record."""
        return self.debtor.encode()


def check_form(
    media_type: str, charset: str | None, encoding: str | None, content_length: int | None, bytes_max: int
) -> None:
    """Check the headers before a byte of the body is read, or raise RefusedError.

    Args:
        media_type: of Content-Type, without parameters, lower case.
        charset: of Content-Type; None where it has none.
        encoding: Content-Encoding; None without one.
        content_length: in bytes; None where the body comes in chunks.
    """
    if media_type != MEDIA_TYPE or (charset or "utf-8").lower() not in {"utf-8", "utf8"}:
        raise RefusedError(Refusal.UNSUPPORTED_MEDIA_TYPE, f"send JSON in UTF-8 as Content-Type: {MEDIA_TYPE}")
    if (encoding or "identity").lower() != "identity":
        raise RefusedError(
            Refusal.UNSUPPORTED_MEDIA_TYPE,
            "send the payment without Content-Encoding: its bytes are kept as they are received",
        )
    if content_length is not None:
        check_size(content_length, bytes_max)


def check_size(size: int, bytes_max: int) -> None:
    """Raise RefusedError if a body, or what has been read of it, is too large."""
    if size > bytes_max:
        raise RefusedError(Reason.TOO_LARGE, f"the body is above {bytes_max} bytes: send less at once")


def place(body: bytes, partitions: int) -> Placement:
    """Decide where a payment or reversal of any schema version goes.

    Raises RefusedError for the reason that ingest would dead-letter it. An account's opening is
    refused as well: it has a path and a scope of its own.
    """
    instruction = decode(body, partitions)
    if isinstance(instruction, AccountOpening):
        raise RefusedError(
            Reason.TYPE_UNKNOWN,
            "type is 'account_opening': send payment or reversal, or open an account by POST /v1/accounts",
        )
    return placement_of(instruction, partitions)


def decode(value: bytes, partitions: int) -> Instruction:
    """Decode an instruction; RefusedError for the reason that ingest would dead-letter it."""
    try:
        return decode_payment(value, partitions)
    except InvalidPaymentError as error:
        raise RefusedError(error.reason, error.detail) from error


def placement_of(instruction: Instruction, partitions: int) -> Placement:
    debtor = instruction.debtor
    return Placement(instruction.payment_id, debtor, partition_for(debtor, partitions))


def coordinates(partition: str | None, offset: str | None, partitions: int) -> tuple[int, int]:
    """Partition and offset of a raw record from a query; RefusedError if they are missing or invalid."""
    number, at = partition or "", offset or ""
    if not (is_number(number) and is_number(at)) or int(number) >= partitions:
        raise RefusedError(
            Refusal.COORDINATES_INVALID,
            f"send ?partition=0 to {partitions - 1} and &offset=, both from the Location of the answer to the POST",
        )
    return int(number), int(at)


class _Named(msgspec.Struct):
    payment_id: object = UNSET


decode_named = msgspec.json.Decoder(_Named).decode
"""From a record or a body to its payment_id, UNSET without one. Raises ValueError or RecursionError."""


def names_payment(value: bytes | None, payment_id: str) -> bool:
    """Whether a raw record, valid or not, has this payment_id: coordinates alone could show another's payment."""
    try:
        return decode_named(value or b"").payment_id == payment_id
    except (ValueError, RecursionError):
        return False
