"""The record handler of the ledger: transfers in; postings, declines and credit legs out; balances as state."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from services.ledger import domain, terms
from services.ledger.domain import Booking, House, Original, requests_for
from shared.eos.records import Output, Record
from shared.eos.store import Stores, Table
from shared.eos.window import Window
from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_ACCOUNTS, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.codec import InternalInputError
from shared.events.effects import EVERY_ACCOUNT, Subscriptions, encode_request
from shared.events.headers import ORIGIN, SOURCE, Headers, lineage
from shared.events.identity import identity_digest
from shared.events.partitions import partition_for
from shared.events.postings import (
    ACCOUNT_PREFIX,
    OF_INSTALLATION,
    Account,
    Decline,
    LedgerEvent,
    NotifiedBy,
    Posting,
    decode_account,
    encode_account,
    encode_ledger_event,
    encode_terms,
)
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    Transfer,
    TransferRecord,
    TransferReversal,
    decode_transfer,
    encode_transfer,
)

PAYMENT_PREFIX = b"payment/"

_BY_NONE = NotifiedBy(None, None, OF_INSTALLATION)

Submitted = TypeVar("Submitted", bound=Transfer | TransferReversal | AccountOpened)

_encode_original = msgspec.msgpack.Encoder().encode
_decode_original = msgspec.msgpack.Decoder(Original).decode


class LedgerHandler:
    """One of the partitions of ledger.transfers, and the accounts that live on it.

    A debit leg produces a posting and the credit leg's transfer, or a decline. A credit leg produces a posting. The
    opening of an account that comes from payments.raw produces an account event or a decline, an operator's command
    only if it changes anything. With each account event goes a record of ledger.accounts. Postings and declines ask for
    effects where subscriptions match.

    Args:
        reversal_window: how many booked payments are remembered, so that they can be reversed.
        subscriptions: by account, or `*`; read at each record and kept up to date by the caller.
        subscription_places: likewise the coordinates of their records, `partition:offset`.
        installation: its id.
        raw_from: first offset of payments.raw, on the same partition, that needs a client; earlier ones count as the
            operator's.
    """

    def __init__(
        self,
        partition: int,
        reversal_window: int,
        subscriptions: Mapping[str, Subscriptions],
        subscription_places: Mapping[str, str] | None = None,
        *,
        partitions: int,
        installation: str,
        raw_from: int = 0,
    ) -> None:
        self._partition = partition
        self._raw_from = raw_from
        self._installation = installation
        self._effect_ids = OF_INSTALLATION
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._subscription_places = {} if subscription_places is None else subscription_places
        self._house = House.of(partition)
        self._accounts = Table(ACCOUNT_PREFIX, encode_account, decode_account, _copy)
        self._payments = Window(PAYMENT_PREFIX, reversal_window)
        self._store = Stores(self._accounts, self._payments)
        self._coordinates = b"%b:%d:" % (LEDGER_TRANSFERS.encode(), partition)

    @property
    def store(self) -> Stores:
        return self._store

    @property
    def accounts(self) -> Table[Account]:
        return self._accounts

    def process(self, record: Record) -> list[Output]:
        """Book one transfer record.

        Raises:
            InternalInputError: the record does not follow the schema of transform, the ledger or `once accounts`.
            UnbalancedPostingError: a posting would not balance.
        """
        source = self._coordinates + b"%d" % record.offset
        try:
            transfer = decode_transfer(record.value or b"")
        except ValueError as error:
            raise InternalInputError(f"{source.decode()}: {error}") from error
        headers = lineage(record.headers, source)
        if headers is None:
            return self._command(transfer, source)
        if isinstance(transfer, Transfer):
            return self._transfer(self._counted(transfer, headers) if self._raw_from else transfer, headers)
        if isinstance(transfer, CreditLeg):
            return self._credit_leg(transfer, headers)
        if isinstance(transfer, TransferReversal):
            return self._reversal(self._counted(transfer, headers), headers)
        if isinstance(transfer, AccountOpened):
            opening = self._counted(transfer, headers)
            return self._open(opening, opening.submitted_by, headers)
        raise InternalInputError(f"{source.decode()} closes an account, and has an origin")

    def _counted(self, event: Submitted, headers: Headers) -> Submitted:
        """Return the event with the client whom it counts for."""
        if not self._raw_from or int(headers[0][1].rpartition(b":")[2]) >= self._raw_from:
            return event
        return msgspec.structs.replace(event, submitted_by=OPERATOR)

    def _command(self, event: TransferRecord, source: bytes) -> list[Output]:
        """Do what an operator's command says, which is its own origin; nothing if it changes nothing."""
        headers = (ORIGIN, source), (SOURCE, source)
        if isinstance(event, AccountOpened):
            return self._open(event, OPERATOR, headers, unchanged=False)
        if not isinstance(event, AccountClosed):
            raise InternalInputError(f"{source.decode()} has no origin")
        self._check_home(event.account, headers)
        account = self._accounts.get(event.account)
        if not terms.changes_terms(account, event):
            return []
        return self._change_terms(terms.decide_closing(account, event), headers)

    def _open(
        self, event: AccountOpened, submitted_by: SubmittedBy | None, headers: Headers, *, unchanged: bool = True
    ) -> list[Output]:
        """Open an account or decline it; `unchanged` is whether an event that changes nothing is written."""
        name = event.account
        self._check_home(name, headers)
        account = self._accounts.get(name)
        decided = terms.decide_opening(account, event, submitted_by, self._notified_by(name))
        if isinstance(decided, Decline):
            return self._outputs(name, decided, headers)
        return self._change_terms(decided, headers) if unchanged or terms.changes_terms(account, event) else []

    def _transfer(self, transfer: Transfer, headers: Headers) -> list[Output]:
        debtor = transfer.debtor
        self._check_home(debtor, headers)
        decided = domain.decide_transfer(self._house, self._accounts.get(debtor), transfer, self._notified_by(debtor))
        if isinstance(decided, Decline):
            return self._outputs(debtor, decided, headers)
        # Where ingest forgot an identity and accepted it again, a reversal refers to the newer payment
        original = _encode_original(domain.original_of(decided))
        self._payments.renew(identity_digest(debtor, transfer.payment_id), original)
        return self._book(decided, headers)

    def _reversal(self, reversal: TransferReversal, headers: Headers) -> list[Output]:
        debtor = reversal.debtor
        self._check_home(debtor, headers)
        original = self._kept(debtor, reversal.reverses)
        account, notified_by = self._accounts.get(debtor), self._notified_by(debtor)
        decided = domain.decide_reversal(self._house, account, reversal, original, notified_by)
        if isinstance(decided, Decline):
            return self._outputs(debtor, decided, headers)
        if original is not None:
            self._keep(debtor, reversal.reverses, msgspec.structs.replace(original, reversed=True))
        return self._book(decided, headers)

    def _notified_by(self, account: str) -> NotifiedBy | None:
        """Name the subscriptions in force for an account's event; None for a house account, which gets none."""
        if "@" in account:
            return None
        places = self._subscription_places
        return NotifiedBy(places.get(account), places.get(EVERY_ACCOUNT), self._effect_ids) if places else _BY_NONE

    def _kept(self, debtor: str, payment_id: str) -> Original | None:
        """Return a booked payment that can still be reversed, or was."""
        kept = self._payments.get(identity_digest(debtor, payment_id))
        return None if kept is None else _decode_original(kept)

    def _keep(self, debtor: str, payment_id: str, original: Original) -> None:
        self._payments.put(identity_digest(debtor, payment_id), _encode_original(original))

    def _credit_leg(self, leg: CreditLeg, headers: Headers) -> list[Output]:
        self._check_home(leg.creditor, headers)
        creditor, notified_by = self._accounts.get(leg.creditor), self._notified_by(leg.creditor)
        posting = domain.decide_credit_leg(self._house, creditor, leg, notified_by)
        self._apply(posting)
        return self._outputs(leg.creditor, posting, headers)

    def _change_terms(self, event: AccountOpened | AccountClosed, headers: Headers) -> list[Output]:
        account = self._account(event.account)
        terms.apply_terms(account, event)
        return [self._event(event.account, event, headers), self._followed(event.account, account, headers)]

    def _followed(self, name: str, account: Account, headers: Headers) -> Output:
        """Return the record of ledger.accounts."""
        value = encode_terms(terms.terms_of(account))
        return Output(LEDGER_ACCOUNTS, self._partition, name.encode(), value, headers)

    def _book(self, booking: Booking, headers: Headers) -> list[Output]:
        self._apply(booking.posting)
        return self._booked(booking, headers)

    def _booked(self, booking: Booking, headers: Headers) -> list[Output]:
        posting, leg = booking
        creditor = leg.creditor
        home = partition_for(creditor, self._partitions)
        credit = Output(LEDGER_TRANSFERS, home, creditor.encode(), encode_transfer(leg), headers)
        return [*self._outputs(posting.debtor, posting, headers), credit]

    def _apply(self, posting: Posting) -> None:
        domain.check_balanced(posting.entries)
        for entry in posting.entries:
            domain.apply(self._account(entry.account), entry)

    def _account(self, name: str) -> Account:
        """Return the account, to be changed in place; a new one if it has no state yet."""
        account = self._accounts.edit(name)
        if account is None:
            account = Account(overdraft_minor=None) if terms.is_house(name) else Account()
            self._accounts.put(name, account)
        return account

    def _outputs(self, account: str, event: Posting | Decline, headers: Headers) -> list[Output]:
        """Return the event and one request for each matching subscription."""
        outputs = [self._event(account, event, headers)]
        if self._subscriptions:
            outputs += self._requests(account, event, headers, self._subscriptions)
        return outputs

    def _requests(
        self, account: str, event: Posting | Decline, headers: Headers, subscriptions: Mapping[str, Subscriptions]
    ) -> list[Output]:
        requests = requests_for(event, account, headers[0][1], subscriptions, installation=self._installation)
        if not requests:
            return []
        key = account.encode()
        return [Output(EFFECTS_REQUESTS, self._partition, key, encode_request(r), headers) for r in requests]

    def _event(self, account: str, event: LedgerEvent, headers: Headers) -> Output:
        return Output(LEDGER_POSTINGS, self._partition, account.encode(), encode_ledger_event(event), headers)

    def _check_home(self, account: str, headers: Headers) -> None:
        try:
            home = partition_for(account, self._partitions)
        except ValueError as error:
            raise InternalInputError(f"{headers}: {error}") from error
        if home != self._partition:
            raise InternalInputError(f"{headers}: the account lives on partition {home}")


def _copy(account: Account) -> Account:
    return Account(account.balances.copy(), account.overdraft_minor, account.closed, account.owner, account.version)
