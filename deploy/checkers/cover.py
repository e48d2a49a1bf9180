"""The ledger's decisions, taken again in the order of ledger.postings: clients, cover, accounts, reversals (I3). Pure.

A partition's postings are in the order in which the ledger decided them, and the fold of those before one is the state
that it was decided on. `books` has that fold, with the posting itself.

A repair writes a missing posting behind those that were decided after it. Until then the fold lacks what the ledger
knew of its accounts, so what was decided on these in between is left open. So is a repaired debit, decline or account
event that the fold does not lead to.

A reversal is decided on the payments that the ledger remembers, and how many these are is a setting. So a payment that
was booked more than `reversal_window` bookings ago may have been forgotten or not: either decision is accepted.
"""

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from deploy.checkers.books import Books
from deploy.checkers.fingerprints import SUSPENSE, fingerprint, identity
from deploy.checkers.offsets import offset_of, partition_of
from deploy.checkers.terms import may_debit, reason_to_decline, shown, version_after
from deploy.checkers.transfers import ACCOUNT, OPENING, REVERSAL, TO_DECLINE, TRANSFER, Transfers
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.clients import OPERATOR
from shared.events.headers import REPAIR, header
from shared.events.postings import Decline, Posting
from shared.events.transfers import AccountClosed, AccountOpened, DeclineReason

REVERSAL_WINDOW: Final = 20_000


_OF_TERMS: Final = frozenset({Kind.UNAUTHORISED, Kind.WRONG_RECEIVER})
"""Faults that only terms decide, whatever was booked."""


class _Fault(NamedTuple):
    """A decision that the fold does not lead to."""

    kind: Kind
    partition: int
    account: str  # that it was taken on; empty where all bookings of the partition count
    source: int  # offset in ledger.transfers of what it was made from
    offset: int
    where: str
    detail: str


class _Repaired(NamedTuple):
    """A posting or account event that a repair wrote."""

    source: int  # as in a fault
    offset: int
    gives_terms: bool
    gives_cover: bool  # it adds to the account's balance


class Cover:
    """Judges debits, credits and declines one by one, each after it was folded, and account events before.

    Attributes:
        open: decisions that could not be judged, after `finish`.
    """

    def __init__(self, findings: Findings, transfers: Transfers, books: Books, reversal_window: int) -> None:
        self._findings = findings
        self._transfers = transfers
        self._books = books
        self._reversal_window = reversal_window
        self._booked: Counter[int] = Counter()  # payments by partition
        # Of the payments that some reversal names, the number of its booking on its partition, and whether a reversal
        # was booked since
        self._originals: dict[int, tuple[int, bool]] = {}
        self._reversed_before: set[int] = set()  # identities that a reversal named before their booking: it came late
        self._faults: list[_Fault] = []
        self._repaired: defaultdict[tuple[int, str], list[_Repaired]] = defaultdict(list)  # by partition and account
        self.open = 0

    def _add(self, kind: Kind, record: Record, account: str, source: int, where: str, detail: str) -> None:
        self._faults.append(_Fault(kind, record.partition, account, offset_of(source), record.offset, where, detail))

    def _leave_open(self, *_: object) -> None:
        self.open += 1

    def _is_repaired(self, event: Posting | AccountOpened | AccountClosed, record: Record, source: int) -> bool:
        if header(record.headers, REPAIR) is None:
            return False
        entries = event.entries if isinstance(event, Posting) else ()
        credited = {entry.account for entry in entries if entry.amount_minor > 0}
        accounts = {entry.account for entry in entries} if isinstance(event, Posting) else {event.account}
        for account in ("", *accounts):
            late = _Repaired(offset_of(source), record.offset, not isinstance(event, Posting), account in credited)
            self._repaired[record.partition, account].append(late)
        return True

    def finish(self) -> None:
        """Report what was found, without the decisions that a repair came too late for."""
        for fault in self._faults:
            if any(_explains(late, fault) for late in self._repaired.get((fault.partition, fault.account), ())):
                self.open += 1
            else:
                self._findings.add(fault.kind, fault.where, fault.detail)

    def account_event(self, event: AccountOpened | AccountClosed, record: Record, source: int, where: str) -> None:
        """Judge an account event, by the terms before it."""
        add = self._leave_open if self._is_repaired(event, record, source) else self._add
        account, terms = event.account, self._books.terms(event.account)
        right = version_after(terms, event)
        former = event.version == 0 and (terms is None or not terms.version) and self._transfers.may_be_former(source)
        if event.version != right and not former:
            detail = f"it gives {account} version {event.version}, and {right} is the next"
            add(Kind.WRONG_ACCOUNT_EVENT, record, account, source, where, detail)
        if not isinstance(event, AccountOpened):
            return
        reason = self._reason_of_opening(event, source)
        if reason == DeclineReason.NOT_AUTHORISED:
            by, owner = self._transfers.submitted_by(source), self._books.owner(account)
            detail = f"{shown(by)} gave {account} of {owner} to {event.owner}, with overdraft {event.overdraft_minor}"
            add(Kind.UNAUTHORISED, record, account, source, where, detail)
        elif reason is not None:
            detail = f"it expects version {event.expected_version} of {account}, which has another one"
            add(Kind.WRONG_ACCOUNT_EVENT, record, account, source, where, detail)

    def _reason_of_opening(self, event: AccountOpened, source: int) -> str | None:
        """Return why an opening has to be declined; operators' commands need no client."""
        by = self._transfers.submitted_by(source) if self._transfers.flags[source] & OPENING else OPERATOR
        return reason_to_decline(by, event, self._books.terms(event.account))

    def _may_debit(self, debtor: str, source: int) -> bool:
        return may_debit(self._transfers.submitted_by(source), debtor, self._books.owner(debtor))

    def debit(self, posting: Posting, record: Record, source: int, where: str) -> None:
        """Judge a debit leg; a repair books one whose credit leg exists, whatever the cover is."""
        add = self._leave_open if self._is_repaired(posting, record, source) else self._add
        flags, debtor = self._transfers.flags[source], posting.debtor
        if flags & (TRANSFER | REVERSAL) and not self._may_debit(debtor, source):
            by, owner = self._transfers.submitted_by(source), self._books.owner(debtor)
            needed = "needs the scope house" if "@" in debtor else f"belongs to {owner}"
            detail = f"submitted by {shown(by)}; {debtor} {needed}"
            add(Kind.UNAUTHORISED, record, debtor, source, where, detail)
        if flags & REVERSAL:
            original = identity(debtor, posting.reverses or "")
            if original in self._originals:
                self._originals[original] = self._originals[original][0], True
            else:
                self._reversed_before.add(original)
            self._check_receiver(posting, debtor, record, source, where)
            return
        if not flags & TRANSFER:
            return
        self._book(source, identity(debtor, posting.payment_id))
        if flags & TO_DECLINE:
            return
        limit_minor = self._books.overdraft_minor(debtor)
        _, currency = self._transfers.cost(source)
        if self._books.is_closed(debtor):
            add(Kind.WRONG_DEBIT, record, debtor, source, where, f"{debtor} was closed")
        elif limit_minor is not None and self._books.balance_minor(debtor, currency) < -limit_minor:
            balance_minor = self._books.balance_minor(debtor, currency)
            detail = f"it leaves {debtor} at {balance_minor} {currency} minor units, and {-limit_minor} is the limit"
            add(Kind.WRONG_DEBIT, record, debtor, source, where, detail)

    def _book(self, source: int, payment: int) -> None:
        partition = partition_of(source)
        if payment in self._transfers.reversed:
            self._originals[payment] = self._booked[partition], payment in self._reversed_before
        self._booked[partition] += 1

    def credit(self, posting: Posting, record: Record, source: int, where: str) -> None:
        """Judge a credit leg, which never fails."""
        self._is_repaired(posting, record, source)
        self._check_receiver(posting, posting.creditor, record, source, where)

    def _check_receiver(self, posting: Posting, account: str, record: Record, source: int, where: str) -> None:
        closed = self._books.is_closed(account)
        suspended = any(entry.account.startswith(f"{SUSPENSE}@") for entry in posting.entries)
        if suspended != closed:
            right = f"{account} was closed: suspense" if closed else f"{account} was open: the account"
            self._add(Kind.WRONG_RECEIVER, record, account, source, where, f"{right} takes the money")

    def decline(self, event: Decline, record: Record, source: int, where: str) -> None:
        """Judge a decline. A repair writes a decline that an effect request shows, whatever the cover is."""
        flags = self._transfers.flags[source]
        authorised = not flags & (TRANSFER | REVERSAL) or self._may_debit(event.debtor, source)
        if authorised and flags & TO_DECLINE:
            if self._transfers.prints[source] != fingerprint(event.reason):
                detail = f"{event.reason} is not the reason of its transfer"
                self._findings.add(Kind.WRONG_DECLINE, where, detail)
            return
        expected: set[str | None]
        if not authorised:
            expected = {DeclineReason.NOT_AUTHORISED}
        elif flags & ACCOUNT:
            command = self._transfers.commands[source]
            expected = {self._reason_of_opening(command, source) if isinstance(command, AccountOpened) else None}
        elif flags & (TRANSFER | REVERSAL):
            expected = self._reasons_of_reversal(source) if flags & REVERSAL else {self._reason(event.debtor, source)}
        else:
            return
        if event.reason not in expected:
            right = " or ".join(sorted(reason or "none" for reason in expected))
            detail = f"declined for {event.reason}; the reason to decline it: {right}"
            # Which originals the ledger remembers follows from all bookings of its partition
            account = "" if authorised and flags & REVERSAL else event.debtor
            add = self._add if header(record.headers, REPAIR) is None else self._leave_open
            add(Kind.WRONG_DECLINE, record, account, source, where, detail)

    def _reason(self, debtor: str, source: int) -> str | None:
        if self._books.is_closed(debtor):
            return DeclineReason.DEBTOR_CLOSED
        limit_minor = self._books.overdraft_minor(debtor)
        cost_minor, currency = self._transfers.cost(source)
        if limit_minor is None or self._books.balance_minor(debtor, currency) - cost_minor >= -limit_minor:
            return None
        return DeclineReason.INSUFFICIENT_FUNDS

    def _reasons_of_reversal(self, source: int) -> set[str | None]:
        original = self._originals.get(self._transfers.reverses.get(source, 0))
        if original is None:
            return {DeclineReason.ORIGINAL_NOT_FOUND}
        number, reversed_before = original
        reasons: set[str | None] = {DeclineReason.ALREADY_REVERSED if reversed_before else None}
        if number < self._booked[partition_of(source)] - self._reversal_window:
            reasons.add(DeclineReason.ORIGINAL_NOT_FOUND)
        return reasons


def _explains(late: _Repaired, fault: _Fault) -> bool:
    """Whether the ledger may have known what a repair wrote after the decision."""
    if not (late.source < fault.source and fault.offset < late.offset):
        return False
    if fault.kind == Kind.WRONG_DEBIT:
        return late.gives_terms or late.gives_cover
    return late.gives_terms or fault.kind not in _OF_TERMS
