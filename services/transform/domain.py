"""Pricing of payments: fee and conversion. Pure: the caller passes reference data and dates.

All amounts are integers in minor units. Every division rounds half to even, by `divide_half_even`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.payments import MAX_AMOUNT_MINOR, AcceptedOpening, AcceptedReversal, Payment
from shared.events.reference import MINOR_DIGITS, Fee, Rate
from shared.events.transfers import AccountOpened, DeclineReason, PricedBy, Transfer, TransferReversal

_BY_NONE = PricedBy(None, None)


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """The current fees and rates. The mappings may change between two payments."""

    fees: Mapping[str, Fee]  # by currency. No entry means no fee
    rates: Mapping[str, Rate]  # by pair, `EUR/USD`. The inverse pair is a separate rate and is never derived
    fee_places: Mapping[str, str] = field(default_factory=dict)  # the record of each fee, `partition:offset`
    rate_places: Mapping[str, str] = field(default_factory=dict)


def divide_half_even(numerator: int, denominator: int) -> int:
    """Divide by a positive denominator, rounding half to even."""
    quotient, remainder = divmod(numerator, denominator)
    doubled = 2 * remainder
    if doubled > denominator or (doubled == denominator and quotient % 2):
        quotient += 1
    return quotient


def fee_minor(amount_minor: int, fee: Fee) -> int:
    """Return the fee on an amount, in the same minor units: fixed part and share, within the schedule's bounds."""
    charged = fee.fixed_minor + divide_half_even(amount_minor * fee.basis_points, 10_000)
    charged = max(charged, fee.min_minor)
    return charged if fee.max_minor is None else min(charged, fee.max_minor)


@lru_cache(maxsize=4096)
def rate_ratio(rate: str, currency: str, credit_currency: str) -> tuple[int, int]:
    """Return a rate as (numerator, denominator) between minor units of two currencies.

    It is in units of `credit_currency` for one unit of `currency`, in the form of RATE_PATTERN: "1.0850".
    """
    whole, _, fraction = rate.partition(".")
    numerator = int(whole + fraction) * 10 ** MINOR_DIGITS[credit_currency]
    return numerator, 10 ** (len(fraction) + MINOR_DIGITS[currency])


def convert_minor(amount_minor: int, rate: str, currency: str, credit_currency: str) -> int:
    numerator, denominator = rate_ratio(rate, currency, credit_currency)
    return divide_half_even(amount_minor * numerator, denominator)


def price(
    payment: Payment, reference: ReferenceData, received_on: str, submitted_by: SubmittedBy | None = None
) -> Transfer:
    """Price a payment: fee, conversion, value date. One that cannot be priced is a decline for the ledger to book.

    `received_on` is the UTC date of its record, YYYY-MM-DD, for payments without a value date.
    """
    currency = payment.currency
    credit_currency = payment.credit_currency or currency
    credit_minor, rate, rate_place, decline = payment.amount_minor, None, None, None
    if credit_currency != currency:
        pair = f"{currency}/{credit_currency}"
        quoted, rate_place = reference.rates.get(pair), reference.rate_places.get(pair)
        rate = None if quoted is None else quoted.rate
        credit_minor, decline = _convert(payment.amount_minor, rate, currency, credit_currency)
    charged, fee_place = 0, None
    schedule = reference.fees.get(currency)
    if schedule is not None:
        fee_place = reference.fee_places.get(currency)
        if "@" not in payment.debtor:  # a house account pays no fee to the house
            charged = fee_minor(payment.amount_minor, schedule)
            if charged > MAX_AMOUNT_MINOR:
                charged, decline = 0, DeclineReason.AMOUNT_TOO_LARGE
    return Transfer(
        payment.payment_id,
        payment.debtor,
        payment.creditor,
        payment.amount_minor,
        currency,
        credit_minor,
        credit_currency,
        payment.value_date or received_on,
        charged,
        rate,
        payment.reference,
        decline,
        _BY_NONE if fee_place is rate_place is None else PricedBy(fee_place, rate_place),
        submitted_by,
    )


def _convert(
    amount_minor: int, rate: str | None, currency: str, credit_currency: str
) -> tuple[int, DeclineReason | None]:
    if rate is None:
        return 0, DeclineReason.NO_RATE
    credit_minor = convert_minor(amount_minor, rate, currency, credit_currency)
    if credit_minor == 0:
        return 0, DeclineReason.AMOUNT_VANISHES
    if credit_minor > MAX_AMOUNT_MINOR:
        return 0, DeclineReason.AMOUNT_TOO_LARGE
    return credit_minor, None


def price_reversal(reversal: AcceptedReversal, received_on: str) -> TransferReversal:
    """Pass a reversal on. It has no price: the ledger negates what it booked."""
    return TransferReversal(
        reversal.payment_id,
        reversal.debtor,
        reversal.reverses,
        reversal.value_date or received_on,
        reversal.reference,
        reversal.submitted_by,
    )


def opened(opening: AcceptedOpening, received_on: str) -> AccountOpened:
    """Return the opening of an account for the ledger to decide. Without an owner, it is for the client that sent it.

    Without a client either, the ledger declines it.
    """
    submitted_by = opening.submitted_by
    client = OWNER_UNNAMED if submitted_by is None else submitted_by.client
    return AccountOpened(
        opening.debtor,
        opening.overdraft_minor,
        opening.owner or client,
        0,
        opening.payment_id,
        opening.expected_version,
        received_on,
        submitted_by,
    )
