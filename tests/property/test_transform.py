"""Prices against exact fractions: no floats, rounding half to even, every price can be booked."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from deploy.checkers.pricing import price as checked
from services.ledger.domain import Booking, House, check_balanced, decide_transfer
from services.transform.domain import ReferenceData, convert_minor, divide_half_even, fee_minor, price
from shared.events.clients import OPERATOR
from shared.events.payments import MAX_AMOUNT_MINOR, Payment
from shared.events.postings import Account
from shared.events.reference import MINOR_DIGITS, Fee, Rate
from tests.instructions import amounts_minor, currencies, payments

rates = st.from_regex(r"(?:0|[1-9][0-9]{0,11})(?:\.[0-9]{1,12})?", fullmatch=True)
small = st.integers(0, 10**6)
fees = st.builds(Fee, small, st.integers(0, 20_000), small, st.none() | small)


@given(st.integers(), st.integers(1))
def test_division_rounds_as_fractions_do(numerator: int, denominator: int) -> None:
    assert divide_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@given(amounts_minor, rates, currencies, currencies)
def test_conversion_is_the_exact_product_rounded_once(
    amount_minor: int, rate: str, currency: str, credit_currency: str
) -> None:
    digits = MINOR_DIGITS[credit_currency] - MINOR_DIGITS[currency]
    exact = amount_minor * Fraction(rate) * Fraction(10) ** digits
    assert convert_minor(amount_minor, rate, currency, credit_currency) == round(exact)


@given(amounts_minor, fees)
def test_a_fee_is_within_its_bounds(amount_minor: int, fee: Fee) -> None:
    charged = fee_minor(amount_minor, fee)
    exact = fee.fixed_minor + round(Fraction(amount_minor * fee.basis_points, 10_000))
    assert charged >= 0
    assert fee.max_minor is None or charged <= fee.max_minor
    assert charged == exact or charged in (fee.min_minor, fee.max_minor)


@given(payments, fees, st.none() | rates)
def test_a_priced_payment_can_be_booked(payment: Payment, fee: Fee, rate: str | None) -> None:
    pair = f"{payment.currency}/{payment.credit_currency}"
    reference = ReferenceData({payment.currency: fee}, {} if rate is None else {pair: Rate(rate)})
    transfer = price(payment, reference, "1993-01-01", OPERATOR)
    decided = decide_transfer(House.of(0), Account(overdraft_minor=None), transfer)
    assert isinstance(decided, Booking) == (transfer.decline is None)
    if isinstance(decided, Booking):
        check_balanced(decided.posting.entries)
        assert 1 <= decided.credit_leg.amount_minor <= MAX_AMOUNT_MINOR


@given(payments, fees | st.builds(Fee, st.just(MAX_AMOUNT_MINOR)), st.none() | rates)
def test_the_verifier_computes_the_same_price(payment: Payment, fee: Fee, rate: str | None) -> None:
    quoted = None if rate is None else Rate(rate)
    pair = f"{payment.currency}/{payment.credit_currency}"
    reference = ReferenceData({payment.currency: fee}, {} if quoted is None else {pair: quoted})
    transfer = price(payment, reference, "1993-01-01")
    assert checked(transfer, fee, quoted) == (
        transfer.fee_minor,
        transfer.rate,
        transfer.credit_minor,
        transfer.decline,
    )
