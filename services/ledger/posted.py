"""The fold of ledger.postings, by which the ledger's state is corrected. Pure."""

from services.ledger import domain, terms
from services.ledger.domain import House
from shared.events.codec import InternalInputError
from shared.events.headers import SOURCE, Coordinates, Headers, header
from shared.events.postings import DEBIT, Account, AccountTerms, Decline, LedgerEvent, Posting
from shared.events.transfers import CreditLeg, Transfer, TransferReversal

PaymentName = tuple[str, str]  # debtor, payment_id


class PostedBooks:
    """The fold of one partition's postings.

    Args:
        reversal_window: how many booked payments the ledger remembers.

    Attributes:
        accounts: by name, house accounts included.
        wanted: payments whose postings are kept in `originals`; add them before the postings are taken.
        last: the last `reversal_window` payments, the oldest first, with the numbers of their bookings. Their postings
            are kept in `originals` as well.
        reversed: payments that a posted reversal reverses, those of `wanted` and `last` among them, and the offset of
            its source. A payment that a repair wrote comes after its reversal.
        changed_by: headers of each account's account event with the latest source.
        followed: the last records of ledger.accounts, by account.
    """

    def __init__(self, partition: int, reversal_window: int) -> None:
        self._in_transit = House.of(partition).in_transit
        self._reversal_window = reversal_window
        self._booked = 0
        self.accounts: dict[str, Account] = {}
        self.wanted: set[PaymentName] = set()
        self.last: dict[PaymentName, int] = {}
        self.originals: dict[PaymentName, Posting] = {}
        self.reversed: dict[PaymentName, int] = {}
        self.changed_by: dict[str, Headers] = {}
        self.followed: dict[str, AccountTerms] = {}

    def want(self, event: object) -> None:
        """Keep the payment that a missing transfer or reversal refers to."""
        if isinstance(event, Transfer):
            self.wanted.add((event.debtor, event.payment_id))
        elif isinstance(event, TransferReversal):
            self.wanted.add((event.debtor, event.reverses))

    def take(self, event: LedgerEvent, headers: Headers = ()) -> None:
        """Fold one event, in the partition's order."""
        if isinstance(event, Decline):
            return
        if not isinstance(event, Posting):
            terms.apply_terms(self._account(event.account), event)
            if self.decided_by(event.account) <= _source_offset(headers):
                self.changed_by[event.account] = headers
            return
        for entry in event.entries:
            domain.apply(self._account(entry.account), entry)
        if event.leg != DEBIT:
            return
        if event.reverses is None:
            self._book((event.debtor, event.payment_id), event, _source_offset(headers))
        else:
            self.reversed[event.debtor, event.reverses] = _source_offset(headers)

    def _book(self, name: PaymentName, posting: Posting, source: int) -> None:
        if self.reversed.get(name, source) <= source:
            self.reversed.pop(name, None)  # that was of an older payment
        self.originals[name] = posting
        self.last.pop(name, None)
        self.last[name] = self._booked
        self._booked += 1
        while self.last[oldest := next(iter(self.last))] < self._booked - self._reversal_window:
            del self.last[oldest]
            if oldest not in self.wanted:
                del self.originals[oldest]
                self.reversed.pop(oldest, None)

    def decided_by(self, account: str) -> int:
        """Return the offset of the last command that changed an account's terms; -1 where there is none."""
        return _source_offset(self.changed_by.get(account, ()))

    def _account(self, name: str) -> Account:
        return self.accounts.setdefault(name, Account(overdraft_minor=None) if terms.is_house(name) else Account())

    def credit_leg(self, posting: Posting) -> CreditLeg:
        """Return the credit leg that a debit posting sent; raise InternalInputError if it put nothing in transit."""
        for entry in posting.entries:
            if entry.account == self._in_transit:
                return CreditLeg(
                    posting.payment_id,
                    posting.debtor,
                    posting.creditor,
                    entry.amount_minor,
                    entry.currency,
                    posting.value_date,
                    posting.reversal,
                )
        raise InternalInputError(f"the posting of {posting.payment_id} has no entry on {self._in_transit}")


def _source_offset(headers: Headers) -> int:
    source = header(headers, SOURCE)
    return -1 if source is None else Coordinates.decode(source).offset
