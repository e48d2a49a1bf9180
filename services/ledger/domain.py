"""Double entry in two legs: decide on postings and declines, and apply them to accounts. Pure.

Decisions take the acting account's state and the record, and return events. Only `apply` changes an account. A record's
`submitted_by` is the client whom it counts for, OPERATOR before ownership was enforced.

A posting touches one partition and balances in each currency. The debtor's partition p books debtor -> in-transit@p,
the creditor's partition q books in-transit@q -> creditor. Conversions and fees go over house accounts of p.

`requests_for` returns one request for each subscription that an event matches. A request is an intent in the ledger's
own transaction: if that aborts, no notification is sent. House accounts get no notifications.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from services.ledger.terms import is_house, may_debit
from shared.events.effects import EVERY_ACCOUNT, EffectKind, EffectRequest, Subscription, Subscriptions, effect_id
from shared.events.postings import (
    CREDIT,
    DEBIT,
    OF_INSTALLATION,
    Account,
    Decline,
    Entry,
    NotifiedBy,
    Posting,
)
from shared.events.transfers import CreditLeg, DeclineReason, Transfer, TransferReversal


class UnbalancedPostingError(Exception):
    """A posting's entries do not sum to 0 in some currency: a defect, never booked."""


class Original(msgspec.Struct, frozen=True, array_like=True):
    """The entries of a booked payment's debit posting, kept so that it can be reversed once."""

    creditor: str
    entries: tuple[Entry, ...]
    credit_minor: int  # of its credit leg, as is `credit_currency`
    credit_currency: str
    reversed: bool = False  # whether a reversal was booked already


class Booking(NamedTuple):
    """A debit leg: the posting, and the credit leg that it owes to the creditor's partition."""

    posting: Posting
    credit_leg: CreditLeg


@dataclass(frozen=True, slots=True)
class House:
    """The house accounts of one partition."""

    partition: int
    in_transit: str
    fees: str
    suspense: str

    @classmethod
    def of(cls, partition: int) -> "House":
        return cls(partition, f"in-transit@{partition}", f"fees@{partition}", f"suspense@{partition}")

    def position(self, currency: str) -> str:
        """Return the account of the house's position in a currency, for conversions."""
        return f"fx:{currency}@{self.partition}"


def decide_transfer(
    house: House, debtor: Account | None, transfer: Transfer, notified_by: NotifiedBy | None = None
) -> Booking | Decline:
    """Book the debit leg of a payment, or decline it.

    A debtor without any state is open with no overdraft, and is the operator's.
    """
    reason = _reason_to_decline(debtor, transfer)
    if reason is not None:
        return Decline(
            transfer.payment_id,
            transfer.debtor,
            reason,
            transfer.value_date,
            notified_by=notified_by,
            submitted_by=transfer.submitted_by,
        )
    posting = Posting(
        transfer.payment_id,
        DEBIT,
        transfer.debtor,
        transfer.creditor,
        _debit_entries(house, transfer),
        transfer.value_date,
        fee_minor=transfer.fee_minor,
        rate=transfer.rate,
        reference=transfer.reference,
        notified_by=notified_by,
        submitted_by=transfer.submitted_by,
    )
    credit_leg = CreditLeg(
        transfer.payment_id,
        transfer.debtor,
        transfer.creditor,
        transfer.credit_minor,
        transfer.credit_currency,
        transfer.value_date,
    )
    return Booking(posting, credit_leg)


def _reason_to_decline(debtor: Account | None, transfer: Transfer) -> str | None:
    if not may_debit(transfer.submitted_by, transfer.debtor, debtor):
        return DeclineReason.NOT_AUTHORISED
    if transfer.decline is not None:
        return transfer.decline
    if debtor is not None and debtor.closed:
        return DeclineReason.DEBTOR_CLOSED
    if is_house(transfer.debtor) or _is_covered(debtor, transfer):
        return None
    return DeclineReason.INSUFFICIENT_FUNDS


def _is_covered(debtor: Account | None, transfer: Transfer) -> bool:
    balance, overdraft = 0, 0
    if debtor is not None:
        if debtor.overdraft_minor is None:
            return True
        balance, overdraft = debtor.balances.get(transfer.currency, 0), debtor.overdraft_minor
    return balance - transfer.amount_minor - transfer.fee_minor >= -overdraft


def _debit_entries(house: House, transfer: Transfer) -> tuple[Entry, ...]:
    currency, credit_currency = transfer.currency, transfer.credit_currency
    amount, fee, credit = transfer.amount_minor, transfer.fee_minor, transfer.credit_minor
    debit = Entry(transfer.debtor, currency, -amount - fee)
    in_transit = Entry(house.in_transit, credit_currency, credit)
    fees = (Entry(house.fees, currency, fee),) if fee else ()
    if currency == credit_currency:
        return (debit, in_transit, *fees)
    bought = Entry(house.position(currency), currency, amount)
    sold = Entry(house.position(credit_currency), credit_currency, -credit)
    return (debit, in_transit, *fees, bought, sold)


def original_of(booking: Booking) -> Original:
    """Return the entries of a booked payment that a reversal needs."""
    leg = booking.credit_leg
    return Original(leg.creditor, booking.posting.entries, leg.amount_minor, leg.currency)


def decide_reversal(
    house: House,
    debtor: Account | None,
    reversal: TransferReversal,
    original: Original | None,
    notified_by: NotifiedBy | None = None,
) -> Booking | Decline:
    """Book the debit leg of a reversal: the original's entries, negated. It is never declined for lack of cover.

    A closed debtor gets nothing back: suspense does. The original is None if it is unknown or has left the window.
    """
    authorised = may_debit(reversal.submitted_by, reversal.debtor, debtor)
    if not authorised or original is None or original.reversed:
        reason = DeclineReason.ORIGINAL_NOT_FOUND if original is None else DeclineReason.ALREADY_REVERSED
        return Decline(
            reversal.payment_id,
            reversal.debtor,
            reason if authorised else DeclineReason.NOT_AUTHORISED,
            reversal.value_date,
            reversal=True,
            notified_by=notified_by,
            submitted_by=reversal.submitted_by,
        )
    closed = debtor is not None and debtor.closed
    entries = tuple(
        Entry(
            house.suspense if closed and entry.account == reversal.debtor else entry.account,
            entry.currency,
            -entry.amount_minor,
        )
        for entry in original.entries
    )
    posting = Posting(
        reversal.payment_id,
        DEBIT,
        reversal.debtor,
        original.creditor,
        entries,
        reversal.value_date,
        reversal=True,
        reverses=reversal.reverses,
        reference=reversal.reference,
        notified_by=notified_by,
        submitted_by=reversal.submitted_by,
    )
    credit_leg = CreditLeg(
        reversal.payment_id,
        reversal.debtor,
        original.creditor,
        -original.credit_minor,
        original.credit_currency,
        reversal.value_date,
        reversal=True,
    )
    return Booking(posting, credit_leg)


def decide_credit_leg(
    house: House, creditor: Account | None, leg: CreditLeg, notified_by: NotifiedBy | None = None
) -> Posting:
    """Book a credit leg. It never fails: suspense takes a closed creditor's place, and no limit applies."""
    account = house.suspense if creditor is not None and creditor.closed else leg.creditor
    return Posting(
        leg.payment_id,
        CREDIT,
        leg.debtor,
        leg.creditor,
        (Entry(house.in_transit, leg.currency, -leg.amount_minor), Entry(account, leg.currency, leg.amount_minor)),
        leg.value_date,
        reversal=leg.reversal,
        notified_by=notified_by,
    )


def apply(account: Account, entry: Entry) -> None:
    balances = account.balances
    balances[entry.currency] = balances.get(entry.currency, 0) + entry.amount_minor


def check_balanced(entries: Iterable[Entry]) -> None:
    """Raise UnbalancedPostingError unless the entries sum to 0 in each currency."""
    sums: dict[str, int] = {}
    for entry in entries:
        sums[entry.currency] = sums.get(entry.currency, 0) + entry.amount_minor
    if any(sums.values()):
        raise UnbalancedPostingError(f"entries sum to {sums}")


DECLINE = "decline"


def requests_for(
    event: Posting | Decline,
    account: str,
    origin: bytes,
    subscriptions: Mapping[str, Subscriptions],
    *,
    installation: str,
) -> list[EffectRequest]:
    """Return the effects to be made for an event.

    Args:
        account: that acted: the debtor, or the creditor of a credit leg.
        origin: coordinates of the payment's raw record; the effect_ids are derived from it.
        subscriptions: by account, or `*`.
        installation: its id, a part of the effect_ids unless a former version made the event.
    """
    groups = [group for key in (account, EVERY_ACCOUNT) if (group := subscriptions.get(key)) is not None]
    if not groups or "@" in account:
        return []
    changed = None if isinstance(event, Decline) else _changed(event, account)
    kinds = _kinds(event, changed)
    chosen: dict[tuple[str, str], Subscription] = {}
    for one in (one for group in groups for one in group.subscriptions if one.kind in kinds):
        chosen.setdefault((one.kind, one.destination), one)
    named = event.notified_by is not None and event.notified_by.effect_ids == OF_INSTALLATION
    identity = partial(effect_id, origin, installation=installation if named else "")
    return [_request(event, changed, account, identity, one) for one in chosen.values()]


def _changed(posting: Posting, account: str) -> Entry | None:
    """Return the entry that changed the account's balance; None where suspense took its place."""
    return next((entry for entry in posting.entries if entry.account == account), None)


def _kinds(event: Posting | Decline, changed: Entry | None) -> tuple[str, ...]:
    if isinstance(event, Decline):
        return EffectKind.DECLINE_NOTICE.value, EffectKind.EVENT.value
    if changed is None:
        return (EffectKind.EVENT.value,)
    kind = EffectKind.RECEIPT if event.leg == DEBIT else EffectKind.NOTICE
    return kind.value, EffectKind.EVENT.value


def _request(
    event: Posting | Decline,
    changed: Entry | None,
    account: str,
    identity: Callable[[str, str, str], str],
    subscription: Subscription,
) -> EffectRequest:
    kind, destination = subscription.kind, subscription.destination
    if isinstance(event, Decline):
        name, creditor, amount_minor, fee_minor, reason, reference = DECLINE, "", None, 0, event.reason, ""
    else:
        name, creditor, reason, reference = event.leg, event.creditor, None, event.reference
        amount_minor, fee_minor = (changed.amount_minor if changed else 0), event.fee_minor
    return EffectRequest(
        identity(kind, name, destination),
        kind,
        name,
        destination,
        account,
        event.payment_id,
        event.debtor,
        event.value_date,
        creditor,
        amount_minor,
        changed.currency if changed else None,
        fee_minor,
        reason,
        event.reversal,
        reference,
        subscription.ordered,
    )
