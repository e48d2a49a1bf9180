"""Fingerprints: a record's content as 64 bits, so that two records can be compared without keeping either. Pure.

They are Python's hashes: good within one process, never stored. Amounts enter doubled, because hash(-1) equals
hash(-2). The entries that a transfer must lead to are derived here from the events, without the ledger's code.
"""

from collections import defaultdict
from collections.abc import Iterable

from shared.events.clients import OWNER_UNNAMED
from shared.events.effects import EffectRequest
from shared.events.payments import Accepted, AccountOpening, Instruction, Payment, Reversal
from shared.events.postings import CREDIT, DEBIT, Decline, Entry, Posting
from shared.events.transfers import AccountClosed, AccountOpened, CreditLeg, Transfer, TransferReversal

IN_TRANSIT = "in-transit"
SUSPENSE = "suspense"
FEES = "fees"
DECLINE = "decline"  # the event of an effect that reports neither leg

Net = dict[tuple[str, str], int]  # minor units by (account, currency), zeros left out

_MASK = (1 << 64) - 1


def fingerprint(*parts: object) -> int:
    """Hash to 64 bits, never 0: 0 means unknown."""
    return hash(parts) & _MASK or 1


def identity(debtor: str, payment_id: str) -> int:
    """Return the fingerprint of a payment's identity."""
    return fingerprint(debtor, payment_id)


def of_instruction(instruction: Instruction) -> int:
    """Return the fingerprint of an instruction as it was received."""
    if isinstance(instruction, AccountOpening):
        terms = instruction.overdraft_minor, instruction.expected_version, instruction.owner
        return fingerprint(instruction.payment_id, instruction.debtor, terms)
    if isinstance(instruction, Payment):
        credit_currency = instruction.credit_currency or instruction.currency
        return _of_payment(instruction, credit_currency, instruction.value_date)
    return _of_reversal(instruction, instruction.value_date)


def of_accepted(accepted: Accepted, received_on: str) -> int:
    """Return the fingerprint of transform's output that an accepted record must lead to, without the price.

    The day of receipt, YYYY-MM-DD, is the value date where there is none.
    """
    by = accepted.submitted_by
    if isinstance(accepted, AccountOpening):
        owner = accepted.owner or (OWNER_UNNAMED if by is None else by.client)
        terms = accepted.overdraft_minor, accepted.expected_version, owner
        return fingerprint(accepted.payment_id, accepted.debtor, terms, received_on, by)
    value_date = accepted.value_date or received_on
    if isinstance(accepted, Payment):
        return fingerprint(_of_payment(accepted, accepted.credit_currency or accepted.currency, value_date), by)
    return fingerprint(_of_reversal(accepted, value_date), by)


def of_transfer(transfer: Transfer | TransferReversal | AccountOpened) -> int:
    """Return the fingerprint of transform's output; equals `of_accepted` where nothing was altered."""
    by = transfer.submitted_by
    if isinstance(transfer, AccountOpened):
        terms = transfer.overdraft_minor, transfer.expected_version, transfer.owner
        return fingerprint(transfer.command_id, transfer.account, terms, transfer.value_date, by)
    if isinstance(transfer, Transfer):
        return fingerprint(_of_payment(transfer, transfer.credit_currency, transfer.value_date), by)
    return fingerprint(_of_reversal(transfer, transfer.value_date), by)


def _of_payment(one: Payment | Transfer, credit_currency: str, value_date: str | None) -> int:
    parties = one.payment_id, one.debtor, one.creditor
    return fingerprint(parties, one.amount_minor, one.currency, credit_currency, one.reference, value_date)


def _of_reversal(one: Reversal | TransferReversal, value_date: str | None) -> int:
    return fingerprint(one.payment_id, one.debtor, one.reverses, one.reference, value_date)


def net_of(entries: Iterable[Entry]) -> Net:
    """Return the entries' sum for each account and currency."""
    net: Net = defaultdict(int)
    for entry in entries:
        net[entry.account, entry.currency] += entry.amount_minor
    return {key: amount for key, amount in net.items() if amount}


def opposites(net: Net, debtor: str, partition: int) -> tuple[Net, Net]:
    """Return the entries that a reversal books, for an open debtor and for a closed one, whose part suspense takes."""
    open_debtor = {key: -amount for key, amount in net.items()}
    closed_debtor = {
        (f"{SUSPENSE}@{partition}" if account == debtor else account, currency): amount
        for (account, currency), amount in open_debtor.items()
    }
    return open_debtor, closed_debtor


def debit_entries(transfer: Transfer, partition: int) -> tuple[Entry, ...]:
    """Return the entries of a transfer's debit leg: fee and conversion over the house accounts of its partition."""
    entries = [
        Entry(transfer.debtor, transfer.currency, -(transfer.amount_minor + transfer.fee_minor)),
        Entry(f"{IN_TRANSIT}@{partition}", transfer.credit_currency, transfer.credit_minor),
    ]
    if transfer.fee_minor:
        entries.append(Entry(f"{FEES}@{partition}", transfer.currency, transfer.fee_minor))
    if transfer.currency != transfer.credit_currency:
        entries.append(Entry(f"fx:{transfer.currency}@{partition}", transfer.currency, transfer.amount_minor))
        entries.append(
            Entry(f"fx:{transfer.credit_currency}@{partition}", transfer.credit_currency, -transfer.credit_minor)
        )
    return tuple(entries)


def of_expected_debit(transfer: Transfer, partition: int) -> int:
    """Return the fingerprint of the debit posting that a transfer must lead to."""
    return of_debit(transfer, net_of(debit_entries(transfer, partition)))


def of_debit(one: Posting | Transfer, net: Net) -> int:
    """Return the fingerprint of a debit posting; equals `of_expected_debit` where nothing was altered."""
    names = one.payment_id, one.debtor, one.creditor, one.value_date, one.reference
    price = one.fee_minor, one.rate
    return fingerprint(DEBIT, names, price, frozenset((key, 2 * amount) for key, amount in net.items()))


def of_reversing(one: Posting | TransferReversal) -> int:
    """Return the fingerprint of what a reversal's debit posting has of its order; a reversal has no price."""
    price = (one.fee_minor, one.rate) if isinstance(one, Posting) else (0, None)
    return fingerprint(DEBIT, one.payment_id, one.debtor, one.reverses, one.value_date, one.reference, price)


def of_credit_leg(leg: CreditLeg) -> int:
    """Return the fingerprint of a credit leg in flight."""
    return _of_leg(leg, leg.amount_minor, leg.currency)


def of_leg_sent(posting: Posting, net: Net, partition: int) -> int:
    """Return the fingerprint of the credit leg that a debit posting must have sent; 0 if it put nothing in transit."""
    in_transit = [(key[1], amount) for key, amount in net.items() if key[0] == f"{IN_TRANSIT}@{partition}"]
    if len(in_transit) != 1:
        return 0
    currency, amount_minor = in_transit[0]
    return _of_leg(posting, amount_minor, currency)


def of_leg_posted(posting: Posting, net: Net, partition: int) -> int:
    """Return the fingerprint of the credit leg that a posting booked, to the creditor or suspense; 0 if to neither."""
    if len(net) != 2:
        return 0
    for account in (posting.creditor, f"{SUSPENSE}@{partition}"):
        for (name, currency), amount_minor in net.items():
            if name == account and net.get((f"{IN_TRANSIT}@{partition}", currency)) == -amount_minor:
                return _of_leg(posting, amount_minor, currency)
    return 0


def _of_leg(one: CreditLeg | Posting, amount_minor: int, currency: str) -> int:
    names = one.payment_id, one.debtor, one.creditor, one.value_date
    return fingerprint(CREDIT, names, 2 * amount_minor, currency, one.reversal)


def of_account_event(event: AccountOpened | AccountClosed) -> int:
    """Return the fingerprint of an account event, without what the ledger adds: its version, and for whom it counts."""
    if isinstance(event, AccountOpened):
        command = event.command_id, event.expected_version, event.value_date
        return fingerprint("opened", event.account, event.overdraft_minor, event.owner, command)
    return fingerprint("closed", event.account)


def of_reported_posting(posting: Posting, net: Net) -> int:
    """Return the fingerprint of a posting as a request may report it: the acting account's change, and the payment.

    Where suspense took the account's place, its balance did not change; such a change has no currency.
    """
    account = posting.debtor if posting.leg == DEBIT else posting.creditor
    changes = [(currency, amount_minor) for (name, currency), amount_minor in net.items() if name == account]
    currency, amount_minor = changes[0] if changes else (None, 0)
    names = account, posting.payment_id, posting.debtor, posting.creditor, posting.value_date
    change = 2 * amount_minor, currency, posting.fee_minor
    return fingerprint(posting.leg, names, change, None, posting.reversal, posting.reference)


def of_reported_decline(decline: Decline) -> int:
    """Return the fingerprint of a decline as a request may report it."""
    names = decline.debtor, decline.payment_id, decline.debtor, "", decline.value_date
    return fingerprint(DECLINE, names, (None, None, 0), decline.reason, decline.reversal, "")


def of_request(request: EffectRequest) -> int:
    """Return the fingerprint of an effect request; equals that of its posting or decline where nothing was altered."""
    names = request.account, request.payment_id, request.debtor, request.creditor, request.value_date
    doubled = None if request.amount_minor is None else 2 * request.amount_minor
    change = doubled, request.currency if doubled else None, request.fee_minor
    return fingerprint(request.event, names, change, request.reason, request.reversal, request.reference)
