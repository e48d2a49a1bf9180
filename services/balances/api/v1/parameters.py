"""Query parameters of /v1 that /api does not have, and cursors in the order of value dates. Pure."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from services.balances.api.parameters import AccountName, Query, Refusal, RefusedError, Seconds
from services.balances.projection.rows import is_house
from shared.events.fields import is_date
from shared.events.payments import MAX_PAYMENT_ID_CHARS

PAGE_MAX: Final = 200

_CURSOR_CHARS_MAX: Final = 120
_BINDING_BYTES: Final = 6
_OFFSET_MAX: Final = 2**63

Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Day = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Cursor = Annotated[str, Meta(max_length=_CURSOR_CHARS_MAX)]
Order = Literal["newest", "oldest"]


class DatedQuery(Query, frozen=True, kw_only=True):
    """What a question for a page in the order of value dates takes.

    Attributes:
        from: first value date, YYYY-MM-DD; not for a house account.
        to: last value date, YYYY-MM-DD; likewise.
        order: newest or oldest value date first; of one day, or of a house account, in the ledger's order.
        limit: items of a page.
        after: `next` of the page before; with the same other parameters.
    """

    since: Day | None = msgspec.field(default=None, name="from")
    to: Day | None = None
    order: Order = "newest"
    limit: Limit = 50
    after: Cursor | None = None


class DatedEntriesQuery(DatedQuery, frozen=True, kw_only=True):
    """What a question for an account's history takes.

    Attributes:
        currency: ISO 4217; only entries in it.
    """

    currency: str | None = None


class OutcomesQuery(DatedQuery, frozen=True, kw_only=True):
    """What a question for the outcomes of a debtor's commands takes.

    Attributes:
        debtor: whose payments, reversals and openings.
        payment_id: only this one; the oldest comes first, whatever `order` says.
        wait: seconds to wait at most until the outcome of payment_id is known. When they are over, the answer is what
            is known then.
        until: what `wait` waits for: that the outcome is known, or settled as well: not posted only.
    """

    debtor: AccountName
    payment_id: Annotated[str, Meta(min_length=1, max_length=MAX_PAYMENT_ID_CHARS)] | None = None
    wait: Seconds = 0.0
    until: Literal["known", "settled"] = "known"


class DatedPlace(NamedTuple):
    """A row in the order of value dates: what a cursor names."""

    value_date: str
    offset: int
    line: int


def check_dates(query: DatedEntriesQuery, account: str) -> None:
    if is_house(account) and (query.since is not None or query.to is not None):
        detail = "a house account has its entries in the ledger's order: leave out from and to"
        raise RefusedError(Refusal.PARAMETER_INVALID, detail)


def check_wait(query: OutcomesQuery) -> None:
    if query.wait and query.payment_id is None:
        raise RefusedError(Refusal.PARAMETER_INVALID, "wait needs payment_id: a page of several is answered at once")


def encode_cursor(question: tuple[Any, ...], place: DatedPlace) -> str:
    """Make the cursor behind a place, for this question alone: another question refuses it."""
    binding = blake2b(msgspec.json.encode(question), digest_size=_BINDING_BYTES).hexdigest()
    return urlsafe_b64encode(msgspec.json.encode((*place, binding))).rstrip(b"=").decode()


def decode_cursor(question: tuple[Any, ...], after: str | None) -> DatedPlace | None:
    """Return the place that a page begins behind; None for the first page.

    Raises RefusedError if `after` is not a cursor of this question.
    """
    if after is None:
        return None
    try:
        text = urlsafe_b64decode(after + "=" * (-len(after) % 4))
        value_date, offset, line, _ = msgspec.json.decode(text, type=tuple[str, int, int, str])
    except ValueError as error:  # binascii's and msgspec's are some
        raise _not_a_cursor() from error
    place = DatedPlace(value_date, offset, line)
    # An operator's command that the ledger declined has no value date
    is_place = (not value_date or is_date(value_date)) and 0 <= offset < _OFFSET_MAX > line >= 0
    if not is_place or encode_cursor(question, place) != after:
        raise _not_a_cursor()
    return place


def _not_a_cursor() -> RefusedError:
    detail = "after is not a cursor of this question: send `next` of the page before, or leave it out"
    return RefusedError(Refusal.PARAMETER_INVALID, detail)
