"""The price of each transfer, computed again: fee, rate, converted amount, and transform's declines (I3). Pure.

Whether a transfer says what its payment says is checked elsewhere, so a price follows from the transfer alone and the
reference data that it names.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, NamedTuple

from deploy.checkers.reference import Choice, Versions
from deploy.checkers.verdict import Findings, Kind
from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.reference import MINOR_DIGITS, Fee, Rate
from shared.events.transfers import DeclineReason, Transfer

_EXACT: Final = Context(prec=80)  # 16 digits of an amount, 24 of a rate, and those that a currency adds
_NO_CONVERSION: Final[Choice[Rate]] = Choice((None,))


class Price(NamedTuple):
    """The fields of a transfer that transform decides."""

    fee_minor: int
    rate: str | None
    credit_minor: int
    decline: str | None


class Pricing:
    """Compares each transfer with its price.

    Attributes:
        open: transfers that could not be judged: the version that decided them may have been compacted away.
    """

    def __init__(self, findings: Findings, fees: Versions[Fee], rates: Versions[Rate]) -> None:
        self._findings = findings
        self._fees = fees
        self._rates = rates
        self.open = 0

    def check(self, transfer: Transfer, used_ms: int, where: str) -> None:
        """Check one transfer; `used_ms` is its record's timestamp."""
        fees, rates = self._choices(transfer, used_ms)
        faults = [choice.fault for choice in (fees, rates) if choice.fault is not None]
        for fault in faults:
            self._findings.add(Kind.WRONG_REFERENCE, where, fault)
        if faults:
            return
        found = Price(transfer.fee_minor, transfer.rate, transfer.credit_minor, transfer.decline)
        expected = [price(transfer, fee, rate) for fee in fees.values for rate in rates.values]
        if found in expected:
            return
        if fees.complete and rates.complete:
            self._findings.add(Kind.WRONG_PRICE, where, f"it has {_shown(found)}, not {_shown(expected[0])}")
        else:
            self.open += 1

    def _choices(self, transfer: Transfer, used_ms: int) -> tuple[Choice[Fee], Choice[Rate]]:
        currency, credit_currency, by = transfer.currency, transfer.credit_currency, transfer.priced_by
        fees = self._fees.possible(currency, used_ms) if by is None else self._fees.named(currency, by.fee, used_ms)
        if currency == credit_currency:
            if by is None or by.rate is None:
                return fees, _NO_CONVERSION
            return fees, Choice((), fault="it names a rate, and converts nothing")
        pair = f"{currency}/{credit_currency}"
        return fees, (self._rates.possible(pair, used_ms) if by is None else self._rates.named(pair, by.rate, used_ms))


def price(transfer: Transfer, fee: Fee | None, rate: Rate | None) -> Price:
    """Return what transform has to decide, given the fee and the rate in force."""
    credit_minor, text, decline = transfer.amount_minor, None, None
    if transfer.currency != transfer.credit_currency:
        credit_minor, decline = 0, DeclineReason.NO_RATE
        if rate is not None:
            text = rate.rate
            credit_minor, decline = _converted(transfer, text)
    charged = 0
    if fee is not None and "@" not in transfer.debtor:  # the house pays no fee to itself
        charged = fee.fixed_minor + _share(transfer.amount_minor, fee.basis_points)
        charged = max(charged, fee.min_minor)
        if fee.max_minor is not None:
            charged = min(charged, fee.max_minor)
        if charged > MAX_AMOUNT_MINOR:
            charged, decline = 0, DeclineReason.AMOUNT_TOO_LARGE
    return Price(charged, text, credit_minor, decline)


def _converted(transfer: Transfer, rate: str) -> tuple[int, DeclineReason | None]:
    digits = MINOR_DIGITS.get(transfer.credit_currency, 0) - MINOR_DIGITS.get(transfer.currency, 0)
    exact = _EXACT.scaleb(_EXACT.multiply(Decimal(transfer.amount_minor), Decimal(rate)), digits)
    credit_minor = int(exact.to_integral_value(ROUND_HALF_EVEN, _EXACT))
    if credit_minor > MAX_AMOUNT_MINOR:
        return 0, DeclineReason.AMOUNT_TOO_LARGE
    return credit_minor, None if credit_minor else DeclineReason.AMOUNT_VANISHES


def _share(amount_minor: int, basis_points: int) -> int:
    """Return so many hundredths of a per cent, halves rounded to even."""
    doubled = 2 * amount_minor * basis_points
    share, rest = divmod(doubled + 10_000, 20_000)
    return share - 1 if rest == 0 and share % 2 else share


def _shown(one: Price) -> str:
    said = f"fee {one.fee_minor}, rate {one.rate}, credit {one.credit_minor}"
    return said if one.decline is None else f"{said}, declined for {one.decline}"
