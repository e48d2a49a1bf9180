"""Query parameters of each path, read and checked, and the refusals of the read side. Pure.

Invariant: the structs here check a query and describe it in the OpenAPI document, so the two cannot differ. A parameter
that is unknown or sent twice is refused, never ignored. A cursor names a place in the ledger, which never changes, so
it stays valid while entries arrive and when the view is rebuilt. Every refusal says what to change, and as of when the
view was read.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from services.balances.projection.progress import Position
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.fields import is_number, shown
from shared.events.partitions import partition_for
from shared.events.payments import MAX_PAYMENT_ID_CHARS
from shared.events.reference import MINOR_DIGITS
from shared.http.page import describe_attributes


class Refusal(StrEnum):
    PARAMETER_UNKNOWN = "parameter_unknown"
    PARAMETER_INVALID = "parameter_invalid"
    ACCOUNT_INVALID = "account_invalid"
    KEY_MISSING = "key_missing"
    KEY_UNKNOWN = "key_unknown"
    KEY_EXPIRED = "key_expired"
    NOT_AUTHORISED = "not_authorised"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    HOST_UNKNOWN = "host_unknown"
    BUSY = "busy"
    VIEW_UNAVAILABLE = "view_unavailable"
    KAFKA_UNAVAILABLE = "kafka_unavailable"
    NOT_REACHED = "not_reached"


STATUS: Mapping[Refusal, int] = {  # of HTTP
    Refusal.PARAMETER_UNKNOWN: 400,
    Refusal.PARAMETER_INVALID: 400,
    Refusal.ACCOUNT_INVALID: 400,
    Refusal.KEY_MISSING: 401,
    Refusal.KEY_UNKNOWN: 401,
    Refusal.KEY_EXPIRED: 401,
    Refusal.NOT_AUTHORISED: 403,
    Refusal.NOT_FOUND: 404,
    Refusal.METHOD_NOT_ALLOWED: 405,
    Refusal.HOST_UNKNOWN: 421,
    Refusal.BUSY: 503,
    Refusal.VIEW_UNAVAILABLE: 503,
    Refusal.KAFKA_UNAVAILABLE: 503,
    Refusal.NOT_REACHED: 504,
}


class Refused(msgspec.Struct, frozen=True):
    """Why the request was refused, and what to do instead.

    Attributes:
        error: for machines.
        detail: for people: what to change, or when to ask again.
        as_of: how far the view had read when it looked; empty where it did not look.
    """

    error: str
    detail: str
    as_of: tuple[Position, ...] = ()


class RefusedError(Exception):
    """A request that gets no 200; its status is HTTP's."""

    def __init__(self, reason: Refusal, detail: str, as_of: tuple[Position, ...] = ()) -> None:
        super().__init__(f"{reason}: {detail}")
        self.status = STATUS[reason]
        self.body = Refused(reason.value, detail, as_of)


ACCOUNT_CHARS_MAX = 64
ENTRIES_MAX = 200
WAIT_S_MAX = 30.0
TIMEOUT_S = 5.0
_CURSOR_CHARS_MAX = 80
_BINDING_BYTES = 6

Seconds = Annotated[float, Meta(ge=0, le=WAIT_S_MAX)]
AccountName = Annotated[str, Meta(min_length=1, max_length=ACCOUNT_CHARS_MAX)]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What every question takes.

    Attributes:
        at_least: wait until the view has read this record of ledger.postings, as partition:offset or with the topic's
            name before it; several partitions' with commas between. Read your own writes with it.
        timeout: seconds to wait for that at most; then the answer is 504.
    """

    at_least: str | None = None
    timeout: Seconds = TIMEOUT_S


class EntriesQuery(Query, frozen=True, kw_only=True):
    """What a question for an account's history takes.

    Attributes:
        currency: ISO 4217; only entries in it.
        order: newest or oldest first.
        limit: entries of a page.
        after: `next` of the page before; with the same account, currency and order.
    """

    currency: str | None = None
    order: Literal["newest", "oldest"] = "newest"
    limit: Annotated[int, Meta(ge=1, le=ENTRIES_MAX)] = 50
    after: Annotated[str, Meta(max_length=_CURSOR_CHARS_MAX)] | None = None


class PaymentQuery(Query, frozen=True, kw_only=True):
    """What a question for a payment takes.

    Attributes:
        debtor: only this debtor's payment.
        wait: seconds to wait at most until the payment is known. When they are over, the answer is what is known then,
            or 404.
        until: what `wait` waits for: that the payment is known, or settled as well.
    """

    debtor: AccountName | None = None
    wait: Seconds = 0.0
    until: Literal["known", "settled"] = "known"


class WayQuery(msgspec.Struct, frozen=True):
    """What a question for a payment's way takes.

    Attributes:
        debtor: only this debtor's payment.
    """

    debtor: AccountName | None = None


class FreshnessQuery(msgspec.Struct, frozen=True):
    """A question that takes no parameter."""


class Place(NamedTuple):
    """An entry on its account's partition: what a cursor names."""

    offset: int
    line: int


Q = TypeVar("Q", bound=msgspec.Struct)


def parse(kind: type[Q], items: Iterable[tuple[str, str]]) -> Q:
    """Read a query's decoded names and values; RefusedError if one is unknown, sent twice or wrong."""
    values: dict[str, str] = {}
    for name, value in items:
        if name not in kind.__struct_encode_fields__:
            known = ", ".join(kind.__struct_encode_fields__) or "none"
            detail = f"{shown(name)} is no parameter of this path; its parameters are: {known}"
            raise RefusedError(Refusal.PARAMETER_UNKNOWN, detail)
        if name in values:
            raise RefusedError(Refusal.PARAMETER_INVALID, f"{name} is there twice: send it once")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        fault, at, path = str(error).rpartition(" - at ")  # the fault may quote the value
        if not at:
            fault, path = path, path.partition("`")[2].partition("`")[0]  # of a missing field
        name = path.strip("`$.")
        meaning = properties(kind)[name]["description"]
        value = f"is {shown(values[name])}" if name in values else "is missing"
        detail = f"{name} {value}: {fault[0].lower()}{fault[1:]}. It means: {meaning}"
        raise RefusedError(Refusal.PARAMETER_INVALID, detail) from error


@cache
def properties(kind: type[msgspec.Struct]) -> Mapping[str, Mapping[str, Any]]:
    """The described schemas of a query's parameters, by name."""
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        schema = msgspec.json.schema_components([base])[1][base.__name__]
        describe_attributes(schema)
        found |= {name: shape for name, shape in schema["properties"].items() if name not in found}
    return found


def home(account: str, partitions: int) -> int:
    """The partition of an account; RefusedError if it cannot exist."""
    if not 1 <= len(account) <= ACCOUNT_CHARS_MAX:
        raise RefusedError(Refusal.ACCOUNT_INVALID, f"an account has 1 to {ACCOUNT_CHARS_MAX} characters")
    try:
        return partition_for(account, partitions)
    except ValueError as error:
        raise RefusedError(Refusal.ACCOUNT_INVALID, str(error)) from error


def check_payment_id(payment_id: str) -> None:
    if not 1 <= len(payment_id) <= MAX_PAYMENT_ID_CHARS:
        detail = f"a payment_id has 1 to {MAX_PAYMENT_ID_CHARS} characters"
        raise RefusedError(Refusal.PARAMETER_INVALID, detail)


def check_currency(currency: str | None) -> None:
    if currency is not None and currency not in MINOR_DIGITS:
        detail = f"currency is {shown(currency)}: send an active ISO 4217 code, such as EUR"
        raise RefusedError(Refusal.PARAMETER_INVALID, detail)


def wanted(at_least: str | None, partitions: int) -> dict[int, int]:
    """Records that the view must have read: offset by partition, the last one of each.

    Raises RefusedError if the text names no records of ledger.postings.
    """
    found: dict[int, int] = {}
    for text in at_least.split(",") if at_least is not None else ():
        partition, _, offset = text.removeprefix(f"{LEDGER_POSTINGS}:").partition(":")
        if not (is_number(partition) and is_number(offset)) or int(partition) >= partitions:
            raise _no_place(text, partitions)
        found[int(partition)] = max(int(offset), found.get(int(partition), 0))
    return found


def _no_place(text: str, partitions: int) -> RefusedError:
    return RefusedError(
        Refusal.PARAMETER_INVALID,
        f"at_least has {shown(text)}: send partition:offset of a record of {LEDGER_POSTINGS}, with partition 0 to "
        f"{partitions - 1}, such as {partitions - 1}:1207. For a payment just sent, whose raw record's coordinates the "
        "gateway gave, ask /api/payments/{payment_id}?wait=5 instead",
    )


def encode_cursor(account: str, query: EntriesQuery, last: Place) -> str:
    """The cursor behind an entry, for this account, currency and order alone."""
    text = f"{last.offset}.{last.line}.{_binding(account, query)}"
    return urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_cursor(account: str, query: EntriesQuery) -> Place | None:
    """The entry that a page begins behind; None for the first page.

    Raises RefusedError if `after` is no cursor, or one of another account, currency or order.
    """
    if query.after is None:
        return None
    try:
        text = urlsafe_b64decode(query.after + "=" * (-len(query.after) % 4)).decode()
        offset, line, _ = text.split(".")
    except ValueError as error:  # binascii's and Unicode's are some
        raise _no_cursor() from error
    if not (is_number(offset) and is_number(line)):
        raise _no_cursor()
    place = Place(int(offset), int(line))
    if encode_cursor(account, query, place) != query.after:
        raise _no_cursor()
    return place


def _no_cursor() -> RefusedError:
    detail = "after is no cursor of this account, currency and order: send `next` of the page before, or leave it out"
    return RefusedError(Refusal.PARAMETER_INVALID, detail)


def _binding(account: str, query: EntriesQuery) -> str:
    """Bind a cursor to its question: another one refuses it, instead of answering with a wrong page."""
    asked = msgspec.json.encode((account, query.currency, query.order))
    return blake2b(asked, digest_size=_BINDING_BYTES).hexdigest()
