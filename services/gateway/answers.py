"""Bodies of the gateway's answers. Pure.

Invariant: an amount is an integer of minor units, with its currency.
"""

from enum import StrEnum

import msgspec


class Accepted(msgspec.Struct, frozen=True):
    """Coordinates of the payment. It is on all in-sync replicas; its state says whether it is booked.

    Attributes:
        payment_id: as received.
        topic, partition, offset: coordinates of the raw record.
        timestamp_ms: of the record, milliseconds since 1970 UTC.
    """

    payment_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OpeningAccepted(msgspec.Struct, frozen=True):
    """Coordinates of the command. It is on all in-sync replicas; the ledger has not decided it yet.

    Attributes:
        command_id: as received.
        account: as received.
        topic, partition, offset: coordinates of the raw record.
        timestamp_ms: of the record, milliseconds since 1970 UTC.
    """

    command_id: str
    account: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one payment of a batch: the fields of Accepted with status 202, else those of Problem.

    Attributes:
        status: of HTTP, as the payment would have got it alone.
        payment_id: as received, where it was accepted.
        topic, partition, offset: coordinates of the raw record.
        timestamp_ms: of the record, milliseconds since 1970 UTC.
        location: path of its outcome.
        type, title, error, detail: why it was refused, and what to change.
    """

    status: int
    payment_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    location: str | None = None
    type: str | None = None
    title: str | None = None
    error: str | None = None
    detail: str | None = None


class Items(msgspec.Struct, frozen=True):
    """The answers to a batch.

    Attributes:
        accepted: number of payments with status 202.
        payments: one answer for each payment, in the order of the request.
    """

    accepted: int
    payments: tuple[Item, ...]


class PaymentState(msgspec.Struct, frozen=True):
    """How far a payment has come.

    Attributes:
        payment_id: as received.
        topic, partition, offset: coordinates of the raw record.
        state: received, accepted, posted (debited), completed (credited as well); or deduplicated, dead_lettered,
            declined.
        final: whether the state will never change.
        at: coordinates of the record that says so.
        reason: why it was declined or dead-lettered.
        detail: of a dead letter, what to change; of a repeat, the first one's coordinates.
    """

    payment_id: str
    topic: str
    partition: int
    offset: int
    state: str
    final: bool
    at: str
    reason: str | None = None
    detail: str | None = None


class OutcomeState(StrEnum):
    """State of a payment, reversal or opening that the ledger has decided."""

    POSTED = "posted"
    COMPLETED = "completed"
    DECLINED = "declined"
    OPENED = "opened"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger decided about a payment, a reversal or an account's opening.

    Attributes:
        payment_id, debtor: together its identity; an opening's are the command_id and the account.
        creditor: of a posting, else null.
        state: posted (debited, and the credit is under way), completed (credited as well), declined, opened.
        final: whether the state will never change.
        reason: why it was declined, else null.
        reversal: whether it is a reversal.
        amount_minor: what the debtor was debited, or got back, without the fee; integer of minor units, or null.
        currency: of amount_minor and fee_minor; ISO 4217.
        fee_minor: what the debtor was charged on top.
        credit_minor: what the creditor was credited; null until then.
        credit_currency: of credit_minor.
        value_date: business date, YYYY-MM-DD.
        client, key_id: of the one that submitted it, null if unknown; the key_id is empty for an operator's command.
        version: of the account after its opening, else null.
        at: coordinates of the record in ledger.postings that says so.
        origin: coordinates of the raw record that was decided; a repeat has other ones.
    """

    payment_id: str
    debtor: str
    state: OutcomeState
    value_date: str
    at: str
    creditor: str | None = None
    final: bool = False
    reason: str | None = None
    reversal: bool = False
    amount_minor: int | None = None
    currency: str | None = None
    fee_minor: int = 0
    credit_minor: int | None = None
    credit_currency: str | None = None
    client: str | None = None
    key_id: str | None = None
    version: int | None = None
    origin: str | None = None
