"""The model of the ledger, with figures computed by hand, and the cases that the sample must contain."""

import json
from collections import Counter

import pytest

from shared.events.reference import Fee
from shared.events.transfers import DeclineReason
from tests.generate import CURRENCIES, EDGE, FEES, RATES, Sample, expected, generate
from tests.model import Books, Intake, Line
from tests.partitions import PARTITIONS, partition_for

SEEDS = range(1, 6)
DAY = "2026-01-05"


def line(payment_id: str, debtor: str, creditor: str, amount_minor: int, currency: str, **more: str) -> Line:
    return {
        "payment_id": payment_id,
        "debtor": debtor,
        "creditor": creditor,
        "amount_minor": amount_minor,
        "currency": currency,
        "value_date": DAY,
        **more,
    }


def reversal(payment_id: str, debtor: str, reverses: str) -> Line:
    return {
        "payment_id": payment_id,
        "debtor": debtor,
        "type": "reversal",
        "reverses": reverses,
        "value_date": DAY,
    }


@pytest.mark.parametrize(
    ("amount_minor", "currency", "bought", "fee_minor", "credit_minor"),
    [
        (2600, "EUR", "USD", 16, 2821),  # fee 10 + 6.5, the half to even
        (100, "EUR", "GBP", 15, 84),  # fee 10 + 0.25, at least 15; 84.37
        (1_000_000, "EUR", "JPY", 60, 1_625_000),  # fee at most 60
        (200, "USD", "JPY", 0, 300),  # fee 0.5
        (600, "USD", "JPY", 2, 900),  # fee 1.5
        (1, "USD", "JPY", 0, 2),  # 1.5 yen
        (3, "USD", "JPY", 0, 4),  # 4.5 yen
        (125, "JPY", "EUR", 1, 50),
        (250, "GBP", "EUR", 0, 296),  # 296.25, free of charge
    ],
)
def test_prices(amount_minor: int, currency: str, bought: str, fee_minor: int, credit_minor: int) -> None:
    books = Books(FEES, RATES)
    books.open("anna", None)
    outcome = books.debit(line("P-1", "anna", "berta", amount_minor, currency, credit_currency=bought))
    books.settle()
    a, b = partition_for("anna"), partition_for("berta")
    assert outcome.declined is None
    assert outcome.fee_minor == fee_minor
    assert books.balances == {
        key: amount
        for key, amount in {
            ("anna", currency): -amount_minor - fee_minor,
            ("berta", bought): credit_minor,
            (f"fees@{a}", currency): fee_minor,
            (f"fx:{currency}@{a}", currency): amount_minor,
            (f"fx:{bought}@{a}", bought): -credit_minor,
            (f"in-transit@{a}", bought): credit_minor if a != b else 0,
            (f"in-transit@{b}", bought): -credit_minor if a != b else 0,
        }.items()
        if amount
    }


def test_cover_is_balance_plus_overdraft() -> None:
    books = Books({"EUR": Fee(fixed_minor=5)}, {})
    books.open("anna", 100)
    assert books.debit(line("P-1", "anna", "berta", 96, "EUR")).declined == "insufficient_funds"
    assert books.debit(line("P-2", "anna", "berta", 95, "EUR")).declined is None
    assert books.debit(line("P-3", "berta", "anna", 1, "EUR")).declined == "insufficient_funds"
    books.settle()
    assert books.debit(line("P-4", "berta", "anna", 90, "EUR")).declined is None
    assert (books.legs, len(books.outcomes)) == (3, 4)


def test_a_reversal_returns_the_fee_once_and_closed_accounts_use_suspense() -> None:
    books = Books({"EUR": Fee(fixed_minor=5)}, {})
    books.debit(line("P-1", "cash@0", "anna", 1000, "EUR"))
    books.settle()
    books.debit(line("P-2", "anna", "berta", 300, "EUR"))
    books.settle()
    books.close("berta")
    assert books.debit(reversal("P-3", "anna", "P-2")).declined is None
    assert books.debit(reversal("P-4", "anna", "P-2")).declined == "already_reversed"
    assert books.debit(reversal("P-5", "anna", "P-3")).declined == "original_not_found"
    books.settle()
    balances = books.balances
    assert balances["anna", "EUR"] == 1000
    assert balances["berta", "EUR"] == 300
    assert balances[f"suspense@{partition_for('berta')}", "EUR"] == -300
    assert books.sums() == {
        ("cash", "EUR"): -1000,
        ("fees", "EUR"): 0,
        ("in-transit", "EUR"): 0,
        ("suspense", "EUR"): -300,
    }


def test_the_first_of_an_identity_counts() -> None:
    intake = Intake()
    first = line("P-1", "anna", "berta", 1, "EUR")
    taken = [
        intake.take(json.dumps(given).encode())
        for given in (
            first,
            first | {"credit_currency": "EUR", "reference": ""},  # same content
            first | {"amount_minor": 2},
            first | {"debtor": "carla"},
        )
    ]
    assert taken == [("anna", "P-1"), None, None, ("carla", "P-1")]
    assert (intake.repeats, intake.conflicts) == (1, 1)


@pytest.fixture(scope="module", params=SEEDS)
def sample(request: pytest.FixtureRequest) -> Sample:
    return generate(request.param)


def test_a_sample_depends_on_its_seed_only(sample: Sample) -> None:
    again = [seed for seed in SEEDS if generate(seed) == sample]
    assert len(again) == 1


def test_a_sample_does_not_depend_on_when_credit_legs_arrive(sample: Sample) -> None:
    _, soon = expected(sample)
    _, late = expected(sample, credits_last=True)
    assert soon.outcomes == late.outcomes
    assert soon.balances == late.balances


def test_a_sample_contains_every_case(sample: Sample) -> None:
    intake, books = expected(sample)
    declines = Counter(outcome.declined for outcome in books.outcomes.values() if outcome.declined)
    # All of it is the operator's, and no command expects a version
    assert set(declines) == set(DeclineReason) - {DeclineReason.NOT_AUTHORISED, DeclineReason.STALE_VERSION}
    assert min(intake.repeats, intake.conflicts) > 0

    booked = {identity: outcome for identity, outcome in books.outcomes.items() if outcome.declined is None}
    paths = {(partition_for(identity[0]), partition_for(outcome.credit[0][0])) for identity, outcome in booked.items()}
    assert len(paths) == PARTITIONS**2
    suspense = [outcome for outcome in booked.values() if any(e[0].startswith("suspense@") for e in outcome.credit)]
    assert {outcome.reverses is None for outcome in suspense} == {True, False}
    assert any(e[0].startswith("suspense@") for outcome in booked.values() for e in outcome.debit)
    pairs = {
        (intake.accepted[identity]["currency"], intake.accepted[identity]["credit_currency"])
        for identity, outcome in booked.items()
        if outcome.rate
    }
    assert {f"{currency}/{bought}" for currency, bought in pairs} == set(RATES)


def test_a_sample_requests_exactly_the_cover_and_one_unit_more(sample: Sample) -> None:
    _, books = expected(sample)
    declined = [outcome.declined for (debtor, _), outcome in books.outcomes.items() if debtor == EDGE]
    assert declined[:6] == ["insufficient_funds", None, "insufficient_funds"] * 2


def test_a_samples_books_balance(sample: Sample) -> None:
    _, books = expected(sample)
    sums = books.sums()
    assert [sums["in-transit", currency] for currency in CURRENCIES] == [0] * len(CURRENCIES)
    assert {currency for name, currency in sums if name == "fees"} == set(FEES)
    for currency in CURRENCIES:
        assert sum(amount for (_, of), amount in books.balances.items() if of == currency) == 0
