"""A whole ledger in tests: six partitions' handlers that pass each other their credit legs, without Kafka.

Its input is between a debtor and a creditor on different partitions.
"""

from collections import deque

from services.ledger.service import LedgerHandler
from shared.eos.records import Output, Record
from shared.eos.store import Change
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.postings import AccountTerms, Decline, LedgerEvent, decode_ledger_event, decode_terms
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    Transfer,
    TransferRecord,
    TransferReversal,
    encode_transfer,
)
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS, partition_for
from tests.stores import commit

DEBTOR, CREDITOR = "2378", "576"
P, Q = partition_for(DEBTOR), partition_for(CREDITOR)
DAY = "1993-01-01"


def transfer(
    payment_id: str = "p-1", amount_minor: int = 1000, fee_minor: int = 0, submitted_by: SubmittedBy | None = OPERATOR
) -> Transfer:
    """A payment between the two."""
    return Transfer(
        payment_id,
        DEBTOR,
        CREDITOR,
        amount_minor,
        "EUR",
        amount_minor,
        "EUR",
        DAY,
        fee_minor,
        reference="rent",
        submitted_by=submitted_by,
    )


def converted(credit_minor: int = 1085) -> Transfer:
    """A payment in two currencies, with a fee."""
    return Transfer("p-1", DEBTOR, CREDITOR, 1000, "EUR", credit_minor, "USD", DAY, 10, "1.0850", submitted_by=OPERATOR)


def reversal(
    payment_id: str = "r-1", reverses: str = "p-1", submitted_by: SubmittedBy | None = OPERATOR
) -> TransferReversal:
    """A reversal of a payment on the next day."""
    return TransferReversal(payment_id, DEBTOR, reverses, "1993-01-02", "mistake", submitted_by)


def declined(events: list[LedgerEvent]) -> str | None:
    """The reason of the only event, if it is a decline."""
    [event] = events
    return event.reason if isinstance(event, Decline) else None


def home(event: TransferRecord) -> str:
    """The account whose partition must act first."""
    return event.account if isinstance(event, AccountOpened | AccountClosed) else event.debtor


class Ledger:
    """All partitions. Credit legs wait in a queue until `drain`. `accounts` has the last record of ledger.accounts."""

    def __init__(self, reversal_window: int = 100, raw_from: int = 0) -> None:
        self.reversal_window = reversal_window
        self.handlers = [
            LedgerHandler(
                partition, reversal_window, {}, partitions=PARTITIONS, installation=INSTALLATION, raw_from=raw_from
            )
            for partition in range(PARTITIONS)
        ]
        self.accounts: dict[str, AccountTerms] = {}
        self.changelogs: list[list[Change]] = [[] for _ in self.handlers]
        self.events: list[tuple[int, LedgerEvent]] = []
        self.waiting: deque[Output] = deque()
        self._offset = 0

    def send(self, event: TransferRecord, *, origin: bytes | None = b"payments.raw:0:0") -> list[LedgerEvent]:
        """Process one record on its home partition; its credit leg waits. Returns its events.

        An account event without a command_id is an operator's command, which has no origin.
        """
        command = isinstance(event, AccountClosed) or (isinstance(event, AccountOpened) and not event.command_id)
        headers = () if origin is None or command else (("origin", origin),)
        key = home(event).encode()
        return self._process(Output(LEDGER_TRANSFERS, partition_for(home(event)), key, encode_transfer(event), headers))

    def drain(self) -> list[LedgerEvent]:
        """Process the waiting credit legs. Returns their events."""
        events: list[LedgerEvent] = []
        while self.waiting:
            events += self._process(self.waiting.popleft())
        return events

    def _process(self, record: Output) -> list[LedgerEvent]:
        handler, partition = self.handlers[record.partition], record.partition
        self._offset += 1
        outputs = handler.process(
            Record(record.topic, partition, self._offset, 0, record.key, record.value, record.headers)
        )
        commit(handler.store, self.changelogs[partition])
        events = []
        for output in outputs:
            if output.topic == LEDGER_POSTINGS:
                assert output.partition == partition
                assert output.value is not None
                events.append(decode_ledger_event(output.value))
            elif output.topic == LEDGER_ACCOUNTS:
                assert output.partition == partition
                self.accounts[(output.key or b"").decode()] = decode_terms(output.value or b"")
            else:
                self.waiting.append(output)
        self.events += [(partition, event) for event in events]
        return events

    def balance(self, account: str, currency: str = "EUR") -> int:
        """Minor units, 0 for an account without state."""
        state = self.handlers[partition_for(account)].accounts.get(account)
        return 0 if state is None else state.balances.get(currency, 0)

    def balances(self) -> dict[tuple[str, str], int]:
        """All balances but zeros, by account and currency."""
        return {
            (account, currency): amount
            for handler in self.handlers
            for account, state in handler.accounts.items()
            for currency, amount in state.balances.items()
            if amount
        }
