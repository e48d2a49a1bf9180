"""Answers of the read side, as values that go into JSON as they are. Pure.

Invariant: every answer says how far the view had read when it was made. Amounts are whole minor units, written as
strings as in report.json: balances may need more digits than readers of JSON keep.
"""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.balances.projection.progress import Position
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import Coordinates
from shared.http.monitor import Step

Minor = Annotated[str, Meta(pattern="^(0|-?[1-9][0-9]*)$")]
"""Minor units of any size, in decimal."""


class Balance(msgspec.Struct, frozen=True):
    """An account's balance in one currency.

    Attributes:
        currency: ISO 4217.
        balance_minor: in minor units.
        postings: how many touched it.
        last_offset: of the last of them, on the account's partition of ledger.postings.
    """

    currency: str
    balance_minor: Minor
    postings: int
    last_offset: int


class Account(msgspec.Struct, frozen=True):
    """An account's state.

    Attributes:
        account: its name.
        partition: of ledger.postings, that holds all of it.
        closed: whether it takes no more debits; what is credited to it goes to suspense.
        overdraft_minor: how far below zero each currency may go; null is unlimited.
        owner: the client whose keys may debit it.
        version: how often its terms or owner changed.
        balances: by currency, sorted; empty for an account without postings.
        last_offset: of the last posting that touched it; null without one.
        as_of: how far the view had read the account's partition.
    """

    account: str
    partition: int
    closed: bool
    overdraft_minor: Minor | None
    owner: str
    version: int
    balances: tuple[Balance, ...]
    last_offset: int | None
    as_of: tuple[Position, ...]


class Entry(msgspec.Struct, frozen=True):
    """One line of an account's history.

    Attributes:
        at: coordinates of the posting in ledger.postings, as topic:partition:offset.
        line: of the posting, from 0.
        timestamp_ms: when it was posted, milliseconds since 1970 UTC.
        payment_id: of the payment or reversal.
        leg: debit (on the debtor's partition) or credit (on the creditor's).
        reversal: whether it belongs to a reversal.
        counterparty: the creditor on an entry of the debtor's; the debtor on any other account's.
        value_date: business date, YYYY-MM-DD.
        reference: free text of who paid; on the debit leg.
        currency: ISO 4217.
        amount_minor: what the entry changed; negative lowers the balance.
        balance_minor: of the account in this currency, after the entry.
    """

    at: str
    line: int
    timestamp_ms: int
    payment_id: str
    leg: str
    reversal: bool
    counterparty: str
    value_date: str
    reference: str
    currency: str
    amount_minor: Minor
    balance_minor: Minor


class Entries(msgspec.Struct, frozen=True):
    """A page of an account's history.

    Attributes:
        account, partition: as in Account.
        order: newest or oldest first; that is the ledger's order, by offset and line.
        entries: at most as many as asked for.
        next: send it as `after` to get the page that follows; null on the last one. It stays valid while entries
            arrive.
        as_of: how far the view had read the account's partition.
    """

    account: str
    partition: int
    order: Literal["newest", "oldest"]
    entries: tuple[Entry, ...]
    next: str | None
    as_of: tuple[Position, ...]


class Holding(msgspec.Struct, frozen=True):
    """What some accounts hold in one currency.

    Attributes:
        holder: clients for all client accounts, or a house account's name for it on all partitions.
        balance_minor: sum of their balances.
        debits_minor: sum of what left them, as a positive number.
        credits_minor: sum of what came to them.
    """

    holder: str
    balance_minor: Minor
    debits_minor: Minor
    credits_minor: Minor


class CurrencyTotal(msgspec.Struct, frozen=True):
    """One currency's totals.

    Attributes:
        currency: ISO 4217.
        clients: all client accounts.
        houses: each house account over its partitions, sorted by name. in-transit is what is under way.
        sum_minor: of all balances; anything but 0 breaks conservation (I1).
        conserved: whether the sum is 0.
    """

    currency: str
    clients: Holding
    houses: tuple[Holding, ...]
    sum_minor: Minor
    conserved: bool


class Totals(msgspec.Struct, frozen=True):
    """Totals by currency.

    Attributes:
        currencies: sorted by code.
        conserved: whether each currency's sum is 0.
        as_of: how far the view had read each partition.
    """

    currencies: tuple[CurrencyTotal, ...]
    conserved: bool
    as_of: tuple[Position, ...]


class Line(msgspec.Struct, frozen=True):
    """One entry of a posting.

    Attributes:
        account: that it changes.
        currency: ISO 4217.
        amount_minor: what it changes; negative lowers the balance.
        balance_minor: of the account in this currency, after it.
    """

    account: str
    currency: str
    amount_minor: Minor
    balance_minor: Minor


class Event(msgspec.Struct, frozen=True):
    """One record of ledger.postings about a payment.

    Attributes:
        kind: debit or credit for a posting, or decline, or opened for an account.
        at: its coordinates, as topic:partition:offset.
        timestamp_ms: when it was posted, milliseconds since 1970 UTC.
        origin: coordinates of the raw record; null if the record does not name it.
        source: coordinates of the record of ledger.transfers that it was made from; null likewise.
        lines: of the posting; none otherwise.
    """

    kind: str
    at: str
    timestamp_ms: int
    origin: str | None
    source: str | None
    lines: tuple[Line, ...]


class Status(StrEnum):
    """What the view knows of a payment, a reversal or an account's opening."""

    DEBITED = "debited"
    CREDITED = "credited"
    COMPLETED = "completed"
    REVERSED = "reversed"
    DECLINED = "declined"
    OPENED = "opened"


class Payment(msgspec.Struct, frozen=True):
    """One payment or reversal, or a client's command to open an account.

    Attributes:
        payment_id, debtor: together its identity; an opening's debtor is the account.
        creditor: of a posting, else null.
        status: debited (the credit is under way), credited (the debit is booked as well, but the view has not read its
            partition so far), completed (both legs are in the view), reversed (completed or debited, and taken back),
            declined, opened (the account is opened, or has new terms).
        settled: whether nothing of it is under way: both legs are in the view, or it has none.
        reason: why it was declined, else null.
        reversal: whether it is a reversal.
        reverses: payment_id of the payment that it takes back; null for a payment, or while its debit leg is not known.
        reversed_by: payment_id of the reversal that took it back, else null.
        value_date: business date, YYYY-MM-DD.
        reference: free text; on the debit leg.
        fee_minor: what the debtor was charged on top.
        rate: the conversion rate, a decimal string; null without conversion.
        client: that submitted it; null if it is not known.
        key_id: of the client's key; empty for an operator's command, null likewise.
        events: debit, then credit, or the decline or opening.
    """

    payment_id: str
    debtor: str
    creditor: str | None
    status: Status
    settled: bool
    reason: str | None
    reversal: bool
    reverses: str | None
    reversed_by: str | None
    value_date: str
    reference: str
    fee_minor: Minor
    rate: str | None
    client: str | None
    key_id: str | None
    events: tuple[Event, ...]


class Payments(msgspec.Struct, frozen=True):
    """All payments of one payment_id. Debtors choose their ids by themselves, so there may be several.

    Attributes:
        payment_id: as asked for.
        payments: sorted by debtor.
        more: whether there are others that are not shown; name the debtor to see one of them.
        as_of: how far the view had read each partition.
    """

    payment_id: str
    payments: tuple[Payment, ...]
    more: bool
    as_of: tuple[Position, ...]


class Way(msgspec.Struct, frozen=True):
    """The way of one debtor's payment through the topics.

    Attributes:
        debtor: whose payment it is.
        steps: from the raw record on, each behind the one that it was made from.
    """

    debtor: str
    steps: tuple[Step, ...]


class Ways(msgspec.Struct, frozen=True):
    """The ways of all payments of one payment_id, as far as they are followed.

    Attributes:
        payment_id: as asked for.
        ways: sorted by debtor.
    """

    payment_id: str
    ways: tuple[Way, ...]


class Digest(msgspec.Struct, frozen=True):
    """One figure for all balances, to be compared with others' at the same positions (I12).

    Attributes:
        digest: SHA-256, hex, over one line `account currency minor` for each balance that is not 0, sorted by its
            bytes, each ended by a newline. `once reconcile` makes it alike.
        balances: how many are not 0.
        as_of: the positions at which it was computed, in one snapshot.
    """

    digest: str
    balances: int
    as_of: tuple[Position, ...]


def place(partition: int, offset: int) -> str:
    return str(Coordinates(LEDGER_POSTINGS, partition, offset))
