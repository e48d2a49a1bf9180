"""Rebuild the ledger's missing records of a torn transaction. Pure.

Invariant: the postings that exist are the truth. The state is set to their fold before a missing record is decided. An
existing posting, decline, credit leg or effect request shows a decision, which is kept.
"""

from collections.abc import Collection, Mapping

import msgspec

from services.ledger import domain, terms
from services.ledger.domain import Booking, Original
from services.ledger.posted import PaymentName, PostedBooks
from services.ledger.service import LedgerHandler
from shared.eos.records import Output, Record
from shared.eos.window import Window
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_TRANSFERS, REFERENCE_SUBSCRIPTIONS
from shared.events.clients import OPERATOR, OWNER_UNNAMED
from shared.events.codec import InternalInputError
from shared.events.effects import EVERY_ACCOUNT, EffectRequest, Subscriptions, effect_id
from shared.events.headers import ORIGIN, SOURCE, Coordinates, Headers, lineage
from shared.events.postings import (
    OF_INSTALLATION,
    OF_ORIGIN,
    Account,
    AccountTerms,
    Decline,
    LedgerEvent,
    Posting,
    decode_ledger_event,
)
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    Transfer,
    TransferReversal,
    decode_transfer,
)


class SupersededError(InternalInputError):
    """A command's account event is missing, and a later command has changed the account: it cannot be written now."""


class LedgerRepair(LedgerHandler):
    """The ledger's handler, over input whose outputs exist in part.

    Args:
        subscriptions: in force now, by account or `*`, as are the coordinates of their records in `places`.
        versions: subscriptions by the coordinates of their record, superseded ones included. An event that exists is
            notified by those that it names.
    """

    def __init__(
        self,
        partition: int,
        reversal_window: int,
        subscriptions: Mapping[str, Subscriptions],
        books: PostedBooks,
        *,
        partitions: int,
        installation: str,
        raw_from: int = 0,
        places: Mapping[str, str] | None = None,
        versions: Mapping[str, Subscriptions] | None = None,
    ) -> None:
        super().__init__(
            partition,
            reversal_window,
            subscriptions,
            places,
            partitions=partitions,
            installation=installation,
            raw_from=raw_from,
        )
        self._versions = {} if versions is None else versions
        self._books = books
        self._reversed: set[PaymentName] = set()
        # Of this attempt: if its transaction is fenced, the next one begins with the same books
        self._changed_by: dict[str, Headers] = {}
        self._terms_written: dict[str, AccountTerms] = {}

    @property
    def payments(self) -> Window:
        """The remembered payments."""
        return self._payments

    def correct(self) -> None:
        """Set accounts and remembered payments to the fold of the postings.

        Call it once, with state and postings complete. Raises InternalInputError if a posting put nothing in transit.
        """
        self._reversed = set(self._books.reversed)
        self._correct_payments()
        for name, state in list(self.accounts.items()):
            blank = Account(overdraft_minor=state.overdraft_minor) if terms.is_house(name) else Account()
            if name not in self._books.accounts and _differs(name, state, blank):
                self.accounts.put(name, blank)
        for name, posted in self._books.accounts.items():
            if _differs(name, self.accounts.get(name), posted):
                self.accounts.put(name, msgspec.structs.replace(posted, balances=posted.balances.copy()))

    def _correct_payments(self) -> None:
        """Set what the state remembers of payments to their postings, and add what it lacks after the oldest of them.

        Older payments may have left the window. A state without any lost them all.
        """
        begun = not len(self._payments)
        for debtor, payment_id in self._books.last:
            kept = self._kept(debtor, payment_id)
            begun = begun or kept is not None
            posted = self._original(debtor, payment_id)
            if posted is not None and begun:
                posted = msgspec.structs.replace(posted, reversed=(debtor, payment_id) in self._reversed)
                if kept != posted:
                    self._keep(debtor, payment_id, posted)

    def mend(
        self,
        record: Record,
        posted: LedgerEvent | None,
        leg: CreditLeg | None,
        requested: Collection[EffectRequest] = (),
    ) -> list[Output]:
        """Return all outputs of one record of ledger.transfers, those that exist included.

        `posted` is the posting, decline or account event that was made from it, `leg` the credit leg, `requested` the
        effects. Raises InternalInputError if the outputs that exist do not follow from the record, SupersededError if
        the missing one would undo a later command.
        """
        event = decode_transfer(record.value or b"")
        source = Coordinates(LEDGER_TRANSFERS, record.partition, record.offset)
        headers = lineage(record.headers, source.encode())
        if isinstance(event, AccountOpened | AccountClosed):
            return self._mend_account(event, posted, record, headers or _own_origin(source))
        if headers is None:
            raise InternalInputError(f"{source} has no origin")
        self._effect_ids = _form_of(requested, headers[0][1])
        if isinstance(event, CreditLeg):
            if isinstance(posted, Posting | Decline):
                return self._outputs(event.creditor, posted, headers)
            return self.process(record)
        if isinstance(posted, Decline):
            return self._outputs(event.debtor, posted, headers)
        if isinstance(posted, Posting):
            return self._posted(event, Booking(posted, self._books.credit_leg(posted)), headers)
        return self._unposted(event, record, headers, leg, next(iter(requested), None))

    def _unposted(
        self,
        event: Transfer | TransferReversal,
        record: Record,
        headers: Headers,
        leg: CreditLeg | None,
        request: EffectRequest | None,
    ) -> list[Output]:
        """Return the outputs of an event whose posting or decline is missing, as its leg or a request shows it."""
        if leg is None and request is None:
            return self._decided(event, record)
        event = self._counted(event, headers)
        if leg is None and request is not None and request.event == domain.DECLINE:
            return self._outputs(event.debtor, self._declined(event, request), headers)
        booking = self._forced(event)
        if booking is None or leg not in {None, booking.credit_leg}:
            at = Coordinates(LEDGER_TRANSFERS, record.partition, record.offset)
            raise InternalInputError(f"the credit leg or effect request that exists does not follow from {at}")
        self._apply(booking.posting)
        return self._posted(event, booking, headers)

    def _mend_account(
        self, event: AccountOpened | AccountClosed, posted: LedgerEvent | None, record: Record, headers: Headers
    ) -> list[Output]:
        """Return what an account event's record lacks in ledger.postings and effects.requests."""
        self._effect_ids = OF_INSTALLATION
        if isinstance(posted, Decline):
            return self._outputs(event.account, posted, headers)
        if posted is not None:
            return []
        if record.offset < self._books.decided_by(event.account):
            return self._superseded(event, headers)
        outputs = [output for output in self.process(record) if output.topic != LEDGER_ACCOUNTS]
        if isinstance(decode_ledger_event(outputs[0].value or b"") if outputs else None, AccountOpened | AccountClosed):
            self._changed_by[event.account] = headers
        return outputs

    def _superseded(self, event: AccountOpened | AccountClosed, headers: Headers) -> list[Output]:
        """Return the outcome of a command where a later one has changed the account: it must not change the terms."""
        name, account = event.account, self.accounts.get(event.account)
        if isinstance(event, AccountOpened):
            is_command = headers[0][1] == headers[1][1]  # its own origin
            counted = event if is_command else self._counted(event, headers)
            by = OPERATOR if is_command else counted.submitted_by
            decided = terms.decide_opening(account, counted, by, self._notified_by(name))
            if isinstance(decided, Decline):
                return self._outputs(name, decided, headers)
            event = counted
        if account is None or terms.changes_terms(account, event):
            later = f"{LEDGER_TRANSFERS}:{self._partition}:{self._books.decided_by(name)}"
            raise SupersededError(
                f"{headers[1][1].decode()} lacks its account event, and {later} has changed {name} since: written now, "
                "it would undo that. Send the command again if it is still wanted"
            )
        return [self._event(name, msgspec.structs.replace(event, version=account.version), headers)]

    def follow(self) -> list[Output]:
        """Return the records that ledger.accounts lacks: of the accounts whose last one is missing or not theirs.

        An older record is not written again: it would take the place of the newer one.
        """
        outputs = []
        for name, headers in (self._books.changed_by | self._changed_by).items():
            account = self.accounts.get(name)
            if account is None or not account.version:
                continue
            due = terms.terms_of(account)
            if due in {self._books.followed.get(name), self._terms_written.get(name)}:
                continue
            self._terms_written[name] = due
            links = tuple((key, value) for key, value in headers if key in {ORIGIN, SOURCE})
            outputs.append(self._followed(name, account, links))
        return outputs

    def _outputs(self, account: str, event: Posting | Decline, headers: Headers) -> list[Output]:
        named = event.notified_by
        if named is None:
            return super()._outputs(account, event, headers)
        in_force: dict[str, Subscriptions] = {}
        for key, place in ((account, named.account), (EVERY_ACCOUNT, named.every_account)):
            if place is None:
                continue
            if place not in self._versions:
                raise InternalInputError(
                    f"{event.payment_id} was notified by {REFERENCE_SUBSCRIPTIONS}:{place}, which is no longer there"
                )
            in_force[key] = self._versions[place]
        return [self._event(account, event, headers), *self._requests(account, event, headers, in_force)]

    def _posted(self, event: Transfer | TransferReversal, booking: Booking, headers: Headers) -> list[Output]:
        """Return the outputs of a debit leg whose decision was taken, and keep what a reversal needs."""
        if isinstance(event, Transfer):
            done = (event.debtor, event.payment_id) in self._reversed
            original = msgspec.structs.replace(domain.original_of(booking), reversed=done)
            self._keep(event.debtor, event.payment_id, original)
        else:
            known = self._kept(event.debtor, event.reverses)
            if known is not None:
                self._keep(event.debtor, event.reverses, msgspec.structs.replace(known, reversed=True))
            self._reversed.add((event.debtor, event.reverses))
        return self._booked(booking, headers)

    def _decided(self, event: Transfer | TransferReversal, record: Record) -> list[Output]:
        """Decide from the present state: no output shows the original decision."""
        if isinstance(event, Transfer):
            return self.process(record)
        name = event.debtor, event.reverses
        original = self._original(*name)
        if original is not None:
            self._keep(*name, msgspec.structs.replace(original, reversed=name in self._reversed))
        outputs = self.process(record)
        kept = self._kept(*name)
        if kept is not None and kept.reversed:
            self._reversed.add(name)
        return outputs

    def _forced(self, event: Transfer | TransferReversal) -> Booking | None:
        """Return the booking of an event that was booked, whatever the cover is now; None where it cannot be."""
        notified_by = self._notified_by(event.debtor)
        owner = OWNER_UNNAMED if event.submitted_by is None else event.submitted_by.client  # it was, to be booked
        if isinstance(event, Transfer):
            unlimited = Account(overdraft_minor=None, owner=owner)
            decided = domain.decide_transfer(self._house, unlimited, event, notified_by)
        else:
            original = self._original(event.debtor, event.reverses)
            if original is not None:
                original = msgspec.structs.replace(original, reversed=False)
            debtor = msgspec.structs.replace(self.accounts.get(event.debtor) or Account(), owner=owner)
            decided = domain.decide_reversal(self._house, debtor, event, original, notified_by)
        return None if isinstance(decided, Decline) else decided

    def _declined(self, event: Transfer | TransferReversal, request: EffectRequest) -> Decline:
        """Return the decline that an effect request reports."""
        return Decline(
            event.payment_id,
            event.debtor,
            request.reason or "",
            event.value_date,
            reversal=request.reversal,
            notified_by=self._notified_by(event.debtor),
            submitted_by=event.submitted_by,
        )

    def _original(self, debtor: str, payment_id: str) -> Original | None:
        """Return a payment as posted, else as the state has it."""
        posted = self._books.originals.get((debtor, payment_id))
        if posted is None:
            return self._kept(debtor, payment_id)
        return domain.original_of(Booking(posted, self._books.credit_leg(posted)))


def _differs(name: str, state: Account | None, posted: Account) -> bool:
    if state is None:
        return True
    if not terms.is_house(name) and terms.terms_of(state) != terms.terms_of(posted):
        return True
    return _nonzero(state) != _nonzero(posted)


def _nonzero(account: Account) -> dict[str, int]:
    return {currency: amount_minor for currency, amount_minor in account.balances.items() if amount_minor}


def _own_origin(source: Coordinates) -> Headers:
    """Return the headers of what was made from an operator's command, which is its own origin."""
    return (ORIGIN, source.encode()), (SOURCE, source.encode())


def _form_of(requested: Collection[EffectRequest], origin: bytes) -> str:
    """Return the form of effect ids for an event that is decided again: that of its effects which exist."""
    formers = (effect_id(origin, one.kind, one.event, one.destination, installation="") for one in requested)
    former = any(one.effect_id == identity for one, identity in zip(requested, formers, strict=True))
    return OF_ORIGIN if former else OF_INSTALLATION
