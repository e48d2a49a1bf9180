"""The ledger: two legs, cover, conversions, suspense, reversals, terms of accounts, and input that is a defect."""

import msgspec
import pytest

from shared.events.catalogue import LEDGER_TRANSFERS
from shared.events.clients import OPERATOR
from shared.events.postings import OF_INSTALLATION, Account, Decline, Entry, NotifiedBy, Posting
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    DeclineReason,
    Transfer,
    TransferReversal,
    decode_transfer,
)
from tests.ledgers import CREDITOR, DAY, DEBTOR, Ledger, P, Q, converted, declined, reversal, transfer

BY_NONE = NotifiedBy(None, None, OF_INSTALLATION)


def test_a_debit_leg_books_into_transit_and_requests_a_credit_leg(ledger: Ledger) -> None:
    [event] = ledger.send(transfer(fee_minor=35))
    assert event == Posting(
        "p-1",
        "debit",
        DEBTOR,
        CREDITOR,
        (Entry(DEBTOR, "EUR", -1035), Entry(f"in-transit@{P}", "EUR", 1000), Entry(f"fees@{P}", "EUR", 35)),
        DAY,
        fee_minor=35,
        reference="rent",
        notified_by=BY_NONE,
        submitted_by=OPERATOR,
    )
    [leg] = ledger.waiting
    assert (leg.topic, leg.partition, leg.key) == (LEDGER_TRANSFERS, Q, CREDITOR.encode())
    assert leg.value is not None
    assert decode_transfer(leg.value) == CreditLeg("p-1", DEBTOR, CREDITOR, 1000, "EUR", DAY)
    assert ledger.balances() == {(DEBTOR, "EUR"): -1035, (f"in-transit@{P}", "EUR"): 1000, (f"fees@{P}", "EUR"): 35}


def test_a_credit_leg_books_out_of_transit(ledger: Ledger) -> None:
    ledger.send(transfer())
    assert ledger.drain() == [
        Posting(
            "p-1",
            "credit",
            DEBTOR,
            CREDITOR,
            (Entry(f"in-transit@{Q}", "EUR", -1000), Entry(CREDITOR, "EUR", 1000)),
            DAY,
            notified_by=BY_NONE,
        )
    ]
    assert ledger.balance(CREDITOR) == 1000
    assert ledger.balance(f"in-transit@{P}") + ledger.balance(f"in-transit@{Q}") == 0


def test_a_payment_within_one_partition_has_two_legs_too() -> None:
    ledger = Ledger()
    ledger.send(Transfer("p-1", "cash@1", "loans@1", 5, "EUR", 5, "EUR", DAY, submitted_by=OPERATOR))
    ledger.drain()
    legs = [event.leg for _, event in ledger.events if isinstance(event, Posting)]
    assert legs == ["debit", "credit"]
    assert ledger.balances() == {("cash@1", "EUR"): -5, ("loans@1", "EUR"): 5}


def test_a_conversion_uses_the_positions_of_the_debtors_partition(ledger: Ledger) -> None:
    [posting] = ledger.send(converted())
    assert isinstance(posting, Posting)
    assert posting.rate == "1.0850"
    assert set(posting.entries) == {
        Entry(DEBTOR, "EUR", -1010),
        Entry(f"fees@{P}", "EUR", 10),
        Entry(f"fx:EUR@{P}", "EUR", 1000),
        Entry(f"fx:USD@{P}", "USD", -1085),
        Entry(f"in-transit@{P}", "USD", 1085),
    }
    ledger.drain()
    assert ledger.balance(CREDITOR, "USD") == 1085


@pytest.mark.parametrize(
    ("overdraft_minor", "amount_minor", "fee_minor", "reason"),
    [
        (0, 1, 0, "insufficient_funds"),
        (1000, 1000, 0, None),
        (1000, 1000, 1, "insufficient_funds"),
        (1000, 1001, 0, "insufficient_funds"),
        (None, 2**53, 0, None),
    ],
)
def test_cover_counts_amount_and_fee(
    overdraft_minor: int | None, amount_minor: int, fee_minor: int, reason: str | None
) -> None:
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, overdraft_minor))
    assert declined(ledger.send(transfer("p-1", amount_minor, fee_minor))) == reason


def test_cover_counts_each_currency_alone(ledger: Ledger) -> None:
    ledger.send(AccountOpened(DEBTOR, 0))
    ledger.send(Transfer("c", "cash@0", DEBTOR, 5000, "USD", 5000, "USD", DAY, submitted_by=OPERATOR))
    ledger.drain()
    assert declined(ledger.send(transfer())) == "insufficient_funds"


def test_an_account_never_opened_is_open_without_overdraft() -> None:
    ledger = Ledger()
    assert declined(ledger.send(transfer())) == "insufficient_funds"
    ledger.send(Transfer("c", "cash@0", DEBTOR, 1000, "EUR", 1000, "EUR", DAY, submitted_by=OPERATOR))
    ledger.drain()
    assert declined(ledger.send(transfer("p-2"))) is None
    assert ledger.balance(DEBTOR) == 0


def test_a_decline_books_nothing_and_requests_no_credit_leg() -> None:
    ledger = Ledger()
    assert ledger.send(transfer()) == [
        Decline("p-1", DEBTOR, "insufficient_funds", DAY, notified_by=BY_NONE, submitted_by=OPERATOR)
    ]
    assert (ledger.balances(), list(ledger.waiting), ledger.changelogs[P]) == ({}, [], [])


@pytest.mark.parametrize("reason", ["no_rate", "amount_vanishes", "amount_too_large"])
def test_a_payment_that_transform_could_not_price_is_declined(ledger: Ledger, reason: str) -> None:
    unpriced = Transfer("p-1", DEBTOR, CREDITOR, 1000, "EUR", 0, "USD", DAY, decline=reason, submitted_by=OPERATOR)
    assert declined(ledger.send(unpriced)) == reason


def test_a_closed_debtor_is_declined(ledger: Ledger) -> None:
    ledger.send(AccountClosed(DEBTOR))
    assert declined(ledger.send(transfer())) == "debtor_closed"


def test_for_a_closed_creditor_suspense_is_credited(ledger: Ledger) -> None:
    ledger.send(transfer())
    ledger.send(AccountClosed(CREDITOR))
    ledger.drain()
    assert ledger.balance(CREDITOR) == 0
    assert ledger.balance(f"suspense@{Q}") == 1000


@pytest.mark.parametrize("original", [transfer(fee_minor=35), converted()])
def test_a_reversal_takes_everything_back(ledger: Ledger, original: Transfer) -> None:
    ledger.send(original)
    ledger.drain()
    [debit] = ledger.send(reversal())
    [credit] = ledger.drain()
    assert isinstance(debit, Posting)
    assert isinstance(credit, Posting)
    assert (debit.leg, debit.reversal, debit.reverses, debit.reference) == ("debit", True, "p-1", "mistake")
    assert (credit.leg, credit.reversal, credit.payment_id, credit.creditor) == ("credit", True, "r-1", CREDITOR)
    assert ledger.balances() == {}


def test_a_reversal_is_done_once(ledger: Ledger) -> None:
    ledger.send(transfer())
    ledger.send(reversal())
    assert ledger.send(reversal("r-2")) == [
        Decline(
            "r-2", DEBTOR, "already_reversed", "1993-01-02", reversal=True, notified_by=BY_NONE, submitted_by=OPERATOR
        )
    ]


@pytest.mark.parametrize("reverses", ["unknown", "r-1", "declined"])
def test_only_a_booked_payment_can_be_reversed(ledger: Ledger, reverses: str) -> None:
    ledger.send(
        Transfer("declined", DEBTOR, CREDITOR, 1, "EUR", 0, "USD", DAY, decline="no_rate", submitted_by=OPERATOR)
    )
    ledger.send(transfer())
    ledger.send(reversal())
    assert declined(ledger.send(reversal("r-2", reverses))) == "original_not_found"


def test_another_debtors_payment_cannot_be_reversed(ledger: Ledger) -> None:
    ledger.send(transfer())
    foreign = TransferReversal("r-1", CREDITOR, "p-1", DAY, submitted_by=OPERATOR)
    assert declined(ledger.send(foreign)) == "original_not_found"


def test_a_payment_outside_the_window_cannot_be_reversed() -> None:
    ledger = Ledger(reversal_window=1)
    ledger.send(AccountOpened(DEBTOR, None))
    ledger.send(transfer("p-1"))
    ledger.send(transfer("p-2"))
    assert declined(ledger.send(reversal("r-1", "p-1"))) == "original_not_found"
    assert declined(ledger.send(reversal("r-2", "p-2"))) is None


def test_a_reversal_may_overdraw_the_creditor(ledger: Ledger) -> None:
    ledger.send(transfer())
    ledger.drain()
    ledger.send(Transfer("out", CREDITOR, "cash@0", 1000, "EUR", 1000, "EUR", DAY, submitted_by=OPERATOR))
    ledger.send(reversal())
    ledger.drain()
    assert ledger.balance(CREDITOR) == -1000


def test_a_reversal_between_closed_accounts_uses_suspense(ledger: Ledger) -> None:
    ledger.send(transfer())
    ledger.drain()
    ledger.send(AccountClosed(DEBTOR))
    ledger.send(AccountClosed(CREDITOR))
    ledger.send(reversal())
    ledger.drain()
    assert ledger.balances() == {
        (DEBTOR, "EUR"): -1000,
        (f"suspense@{P}", "EUR"): 1000,
        (CREDITOR, "EUR"): 1000,
        (f"suspense@{Q}", "EUR"): -1000,
    }


def test_an_identity_that_ingest_forgot_means_the_younger_payment(ledger: Ledger) -> None:
    ledger.send(transfer("p-1", 1000))
    ledger.send(transfer("p-1", 7))
    ledger.send(reversal())
    assert ledger.balance(DEBTOR) == -1000


def test_a_payment_that_is_booked_again_can_be_reversed_for_as_long_as_any_other() -> None:
    ledger = Ledger(reversal_window=4)
    ledger.send(AccountOpened(DEBTOR, None))
    for name in ("p-1", "p-2", "p-3", "p-1", "p-4", "p-5", "p-6"):
        ledger.send(transfer(name))
    [posting] = ledger.send(reversal())
    assert isinstance(posting, Posting)
    for name in ("p-7", "p-8"):
        ledger.send(transfer(name))
    [decline] = ledger.send(msgspec.structs.replace(reversal(), payment_id="r-2", reverses="p-4"))
    assert isinstance(decline, Decline)
    assert decline.reason == DeclineReason.ORIGINAL_NOT_FOUND


def test_terms_that_change_nothing_make_no_event() -> None:
    ledger = Ledger()
    opened, closed = AccountOpened(DEBTOR, 500), AccountClosed(DEBTOR)
    assert ledger.send(opened) == [AccountOpened(DEBTOR, 500, version=1)]
    assert ledger.send(opened) == []
    assert ledger.send(AccountOpened(DEBTOR, None)) == [AccountOpened(DEBTOR, None, version=2)]
    assert ledger.send(closed) == [AccountClosed(DEBTOR, 3)]
    assert ledger.send(closed) == []
    assert ledger.send(opened) == [AccountOpened(DEBTOR, 500, version=4)]
    assert ledger.handlers[P].accounts.get(DEBTOR) == Account({}, 500, version=4)


def test_terms_do_not_change_balances() -> None:
    ledger = Ledger()
    ledger.send(Transfer("c", "cash@0", DEBTOR, 1000, "EUR", 1000, "EUR", DAY, submitted_by=OPERATOR))
    ledger.drain()
    ledger.send(AccountClosed(DEBTOR))
    assert ledger.handlers[P].accounts.get(DEBTOR) == Account({"EUR": 1000}, 0, closed=True, version=1)
