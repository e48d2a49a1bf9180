"""The ledger as a service: headers of its outputs, its restored state, and input that is a defect."""

import pytest

from services.ledger.domain import UnbalancedPostingError, check_balanced
from services.ledger.service import LedgerHandler
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR
from shared.events.codec import InternalInputError
from shared.events.postings import Entry
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    Transfer,
    encode_transfer,
)
from tests.installation import INSTALLATION
from tests.ledgers import CREDITOR, DAY, DEBTOR, Ledger, P, Q, reversal, transfer
from tests.partitions import PARTITIONS
from tests.stores import restore


def record(event: bytes | None, partition: int = P, headers: tuple[tuple[str, bytes], ...] = ()) -> Record:
    return Record(LEDGER_TRANSFERS, partition, 7, 0, b"key", event, headers)


@pytest.mark.parametrize("command", [AccountOpened(DEBTOR, 1), AccountClosed(DEBTOR)])
def test_an_operators_command_is_its_own_origin(command: AccountOpened | AccountClosed) -> None:
    handler = LedgerHandler(P, 1, {}, partitions=PARTITIONS, installation=INSTALLATION)
    outputs = handler.process(record(encode_transfer(command)))
    own = b"ledger.transfers:%d:7" % P
    assert [(output.topic, output.key) for output in outputs] == [
        (LEDGER_POSTINGS, DEBTOR.encode()),
        (LEDGER_ACCOUNTS, DEBTOR.encode()),
    ]
    assert {output.headers for output in outputs} == {(("origin", own), ("source", own))}


def test_both_outputs_of_a_debit_name_their_source() -> None:
    handler = LedgerHandler(P, 1, {}, partitions=PARTITIONS, installation=INSTALLATION)
    handler.process(record(encode_transfer(AccountOpened(DEBTOR, None))))
    outputs = handler.process(record(encode_transfer(transfer()), headers=(("origin", b"payments.raw:0:1"),)))
    assert [output.topic for output in outputs] == [LEDGER_POSTINGS, LEDGER_TRANSFERS]
    for output in outputs:
        source = b"ledger.transfers:%d:7" % P
        assert output.headers == (("origin", b"payments.raw:0:1"), ("source", source))


ORIGIN = (("origin", b"payments.raw:0:1"),)


@pytest.mark.parametrize(
    "bad",
    [
        record(None),
        record(b"{}"),
        record(b"\xff", headers=ORIGIN),
        record(encode_transfer(transfer())),
        record(encode_transfer(transfer()), Q, ORIGIN),
        record(encode_transfer(CreditLeg("p", DEBTOR, CREDITOR, 1, "EUR", DAY)), P, ORIGIN),
        record(encode_transfer(CreditLeg("p", DEBTOR, "cash@9", 1, "EUR", DAY)), P, ORIGIN),
        record(encode_transfer(reversal()), Q, ORIGIN),
        record(encode_transfer(AccountOpened(CREDITOR, 0))),
        record(encode_transfer(AccountClosed(CREDITOR))),
        record(encode_transfer(AccountClosed(DEBTOR)), headers=ORIGIN),
    ],
)
def test_a_record_that_no_service_writes_is_a_defect(bad: Record) -> None:
    handler = LedgerHandler(bad.partition, 1, {}, partitions=PARTITIONS, installation=INSTALLATION)
    with pytest.raises(InternalInputError, match=f"ledger.transfers:{bad.partition}:7"):
        handler.process(bad)
    assert list(handler.store.changes()) == []


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("a", "EUR", 1)],
        [Entry("a", "EUR", 1), Entry("b", "USD", -1)],
        [Entry("a", "EUR", 1), Entry("b", "EUR", -1), Entry("c", "USD", 1)],
    ],
)
def test_an_unbalanced_posting_is_a_defect(entries: list[Entry]) -> None:
    with pytest.raises(UnbalancedPostingError):
        check_balanced(entries)


def test_a_transfer_that_does_not_add_up_is_not_booked() -> None:
    handler = LedgerHandler(0, 1, {}, partitions=PARTITIONS, installation=INSTALLATION)
    broken = Transfer("p", "cash@0", CREDITOR, 1000, "EUR", 999, "EUR", DAY, submitted_by=OPERATOR)
    with pytest.raises(UnbalancedPostingError):
        handler.process(record(encode_transfer(broken), 0, ORIGIN))
    assert handler.accounts.get("cash@0") is None


def test_a_successor_restores_accounts_and_payments(ledger: Ledger) -> None:
    ledger.send(transfer())
    successor = LedgerHandler(P, 100, {}, partitions=PARTITIONS, installation=INSTALLATION)
    restore(successor.store, ledger.changelogs[P])
    assert dict(successor.accounts.items()) == dict(ledger.handlers[P].accounts.items())
    outputs = successor.process(record(encode_transfer(reversal()), headers=ORIGIN))
    assert len(outputs) == 2


def test_a_rollback_leaves_every_balance_as_committed(ledger: Ledger) -> None:
    ledger.send(transfer("p-1"))
    handler, before = ledger.handlers[P], ledger.balances()
    handler.process(record(encode_transfer(transfer("p-2")), headers=ORIGIN))
    assert ledger.balance(DEBTOR) == -2000
    handler.store.rollback()
    assert ledger.balances() == before
