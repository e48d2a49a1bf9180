"""Answers of /v1. Pure.

Invariant: an amount is an integer of minor units, whatever its size, and its currency is with it. Other fields are
those of /api, from whose structs the structs here are made. A refusal is a problem of RFC 9457.
"""

from enum import StrEnum
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from services.balances.api import answers
from services.balances.api.answers import Minor
from services.balances.api.parameters import Refused
from services.balances.projection.progress import Position
from shared.http import problems


class State(StrEnum):
    """The outcome of a command."""

    POSTED = "posted"
    COMPLETED = "completed"
    DECLINED = "declined"
    OPENED = "opened"


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one payment, reversal or command to open an account.

    Attributes:
        payment_id, debtor: together its identity; an opening's debtor is the account.
        creditor: of a posting, else null.
        state: posted (debited, and the credit is under way), completed (both legs are in the view), declined, opened
            (the account is opened, or has new terms).
        reason: why it was declined, else null.
        reversal: whether it is a reversal.
        opening: whether it is a command to open an account.
        reverses: payment_id of the payment that it takes back, else null.
        reversed_by: payment_id of the reversal that took it back, else null.
        amount_minor: what the debtor was debited, or got back from a reversal, without the fee; null unless posted.
        currency: of amount_minor and fee_minor; ISO 4217.
        fee_minor: what the debtor was charged on top.
        credit_minor: what the creditor was credited, or lost to a reversal; null until then.
        credit_currency: of credit_minor.
        rate: the conversion rate, a decimal string; null without conversion.
        value_date: business date, YYYY-MM-DD.
        reference: free text of who paid.
        client: that submitted it; null if it is not known.
        key_id: of the client's key; empty for an operator's command, null likewise.
        version: of the account after its opening, else null.
        timestamp_ms: when it was decided, milliseconds since 1970 UTC.
        at: coordinates of the debit leg, decline or opening in ledger.postings, as topic:partition:offset.
        credited_at: of the credit leg; null until then.
        origin: coordinates of the raw record; null if the record does not name it.
    """

    payment_id: str
    debtor: str
    creditor: str | None
    state: State
    reason: str | None
    reversal: bool
    opening: bool
    reverses: str | None
    reversed_by: str | None
    amount_minor: int | None
    currency: str | None
    fee_minor: int
    credit_minor: int | None
    credit_currency: str | None
    rate: str | None
    value_date: str
    reference: str
    client: str | None
    key_id: str | None
    version: int | None
    timestamp_ms: int
    at: str
    credited_at: str | None
    origin: str | None


class Outcomes(msgspec.Struct, frozen=True):
    """A page of the outcomes of a debtor's commands.

    Attributes:
        debtor: as asked for.
        payments: at most as many as asked for. With a payment_id, the first one is the one that counts: a payment that
            repeats an identity has no outcome of its own, unless the identity had left the window of ingest.
        next: send it as `after` to get the page that follows; null on the last one.
        as_of: how far the view had read each partition.
    """

    debtor: str
    payments: tuple[Outcome, ...]
    next: str | None
    as_of: tuple[Position, ...]


class Problem(problems.Problem, frozen=True):
    """Why the request was refused, as in RFC 9457.

    Attributes:
        type: identifies the kind of problem; a URN that ends with `error`.
        title: the same for people.
        status: of HTTP.
        detail: what to change, or when to ask again.
        error: for machines, as /api has it.
        as_of: how far the view had read when it looked; empty where it did not look.
    """

    as_of: tuple[Position, ...] = ()


def problem(status: int, refused: Refused) -> Problem:
    found = problems.problem(status, refused.error, refused.detail)
    return Problem(found.type, found.title, found.status, found.detail, found.error, refused.as_of)


def with_integers(answer: msgspec.Struct) -> msgspec.Struct:
    """Convert an answer of /api; one without amounts is returned as it is."""
    made = STRUCTS.get(type(answer))
    if made is None:
        return answer
    converted: msgspec.Struct = msgspec.convert(msgspec.to_builtins(answer), made, strict=False)
    return converted


def _of_integers(hint: Any) -> Any:
    if hint == Minor:
        return int
    if get_origin(hint) is tuple:
        return tuple.__class_getitem__(tuple(map(_of_integers, get_args(hint))))
    if get_origin(hint) in {Union, UnionType}:
        return reduce(or_, map(_of_integers, get_args(hint)))
    return STRUCTS.get(hint, hint)


STRUCTS: Final[dict[Any, type[Any]]] = {}
"""The structs of /v1 by those of /api that they are made from: the same fields and texts, with integers for Minor."""

for _kind in (
    answers.Balance,
    answers.Account,
    answers.Entry,
    answers.Entries,
    answers.Holding,
    answers.CurrencyTotal,
    answers.Totals,
):  # what a struct contains comes before it
    STRUCTS[_kind] = msgspec.defstruct(
        f"{_kind.__name__}V1",
        [(name, _of_integers(hint)) for name, hint in get_type_hints(_kind, include_extras=True).items()],
        namespace={"__doc__": _kind.__doc__},
        module=__name__,
        frozen=True,
    )
