"""Accounts opened, given other terms, and closed: each command has its outcome (I3, I7). Pure.

An opening of payments.raw has an account event or a decline. An operator's command that changes nothing has neither.
"""

from collections.abc import Mapping

from deploy.checkers.books import Books
from deploy.checkers.cover import Cover
from deploy.checkers.fingerprints import of_account_event
from deploy.checkers.offsets import NONE, check_consumed, named, offset_of, parse_place
from deploy.checkers.terms import Terms, changes, is_stale, terms_at_first
from deploy.checkers.transfers import ACCOUNT, OPENING, POSTED, TRANSFERS_PREFIX, Transfers
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_TRANSFERS
from shared.events.headers import ORIGIN, REPAIR, header
from shared.events.postings import Decline
from shared.events.transfers import AccountClosed, AccountOpened


class AccountEvents:
    """The account events of ledger.postings, and the declines of commands."""

    def __init__(self, findings: Findings, transfers: Transfers, books: Books, cover: Cover) -> None:
        self._findings = findings
        self._transfers = transfers
        self._books = books
        self._cover = cover
        # By the place of its source, an account's terms after an outcome; None after a decline
        self._terms_after: dict[int, Terms | None] = {}
        # Of accounts in `opened_plainly`, the first offset in ledger.transfers that gave them any state
        self._known_since: dict[str, int] = {}

    def note_state(self, account: str, source: int) -> None:
        """Note that an account event or a posting gave an account a state."""
        if source != NONE and account in self._transfers.opened_plainly:
            offset = offset_of(source)
            self._known_since[account] = min(offset, self._known_since.get(account, offset))

    def _was_known(self, account: str, at: int) -> bool:
        """Whether an account had a state before a command without an outcome."""
        if account not in self._transfers.opened_plainly:
            return True  # else the command changed its terms, or a command before did
        return account in self._known_since and self._known_since[account] < offset_of(at)

    def take(self, event: AccountOpened | AccountClosed, record: Record, source: int, where: str) -> None:
        """Judge one account event, and fold it; `source` is NONE where it has no source."""
        flags = 0 if source == NONE else self._transfers.flags[source]
        before = self._books.terms(event.account)
        repaired = header(record.headers, REPAIR) is not None  # it may repeat the terms of a later command
        if before is not None and not changes(before, event) and not flags & OPENING and not repaired:
            self._findings.add(Kind.NEEDLESS_ACCOUNT_EVENT, where, f"the terms of {event.account} were so before")
        if source != NONE:
            self._cover.account_event(event, record, source, where)
        self._books.fold_terms(event)
        self.note_state(event.account, source)
        if source == NONE:
            return
        self._terms_after[source] = self._books.terms(event.account)
        self._transfers.check_submitted(event.submitted_by if isinstance(event, AccountOpened) else None, source, where)
        if not flags & ACCOUNT or self._transfers.prints[source] != of_account_event(event):
            self._findings.add(Kind.ALTERED_POSTING, where, f"differs from {named(LEDGER_TRANSFERS, source)}")
        if flags & OPENING:
            return
        self._check_own_origin(record, source, where)
        if flags & POSTED:
            detail = f"the second one of {named(LEDGER_TRANSFERS, source)}"
            self._findings.add(Kind.DUPLICATE_ACCOUNT_EVENT, where, detail)

    def decline(self, event: Decline, record: Record, source: int, where: str) -> bool:
        """Take a decline; return whether it is of an operator's command."""
        flags = 0 if source == NONE else self._transfers.flags[source]
        if not flags & ACCOUNT:
            return False
        self._terms_after[source] = None
        if flags & OPENING:
            return False
        self._check_own_origin(record, source, where)
        if not event.opening or event.debtor != self._transfers.commands[source].account:
            self._findings.add(Kind.ALTERED_POSTING, where, f"differs from {named(LEDGER_TRANSFERS, source)}")
        if flags & POSTED:
            self._findings.add(
                Kind.DUPLICATE_DECLINE, where, f"{named(LEDGER_TRANSFERS, source)} had an outcome before"
            )
        return True

    def _check_own_origin(self, record: Record, source: int, where: str) -> None:
        if parse_place(header(record.headers, ORIGIN), TRANSFERS_PREFIX) != source:
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "the origin of an operator's command is the command")

    def finish(self, committed_ledger: Mapping[int, int]) -> None:
        """Check that operators' commands without an outcome changed nothing at their turn, and were not stale.

        The first state of an account is a change, whatever its terms are.
        """
        terms: dict[str, Terms] = {}
        for at, event in self._transfers.commands.items():
            before = terms.get(event.account) or terms_at_first(event.account)
            if self._transfers.flags[at] & (POSTED | OPENING):
                terms[event.account] = self._terms_after.get(at) or before
            elif (
                changes(before, event)
                or (isinstance(event, AccountOpened) and is_stale(event, before))
                or not self._was_known(event.account, at)
            ):
                check_consumed(self._findings, LEDGER_TRANSFERS, at, False, committed_ledger)
