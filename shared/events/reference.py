"""Reference data: currencies, fees, rates, and expected balances. Pure."""

import re
from typing import Annotated

import msgspec

from shared.events.codec import decoder

RATE_PATTERN = re.compile(r"^(?:0|[1-9][0-9]{0,11})(?:\.[0-9]{1,12})?$(?!\n)")
"""A decimal string: up to 12 digits before the point and 12 after it, no sign, no exponent."""

_NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Fee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fee for payments in one currency: fixed part plus share of the amount, within bounds. Minor units."""

    fixed_minor: _NotNegative = 0
    basis_points: _NotNegative = 0  # hundredths of a per cent of the amount, rounded half to even
    min_minor: _NotNegative = 0
    max_minor: _NotNegative | None = None  # None means no upper bound


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Units of the pair's second currency for one unit of the first: a decimal string."""

    rate: Annotated[str, msgspec.Meta(pattern=RATE_PATTERN.pattern)]


class ExpectedBalance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account's balances according to a bank's own file, in minor units."""

    currency: str
    opening_minor: int  # before the file's first transaction; the ledger starts at 0 and is compared net of it
    closing_minor: int  # after its last one, in the bank's own order
    file: str  # name of the file, without its folder


encode_reference = msgspec.json.Encoder().encode
decode_fee = decoder(Fee)
decode_rate = decoder(Rate)
decode_expected_balance = decoder(ExpectedBalance)


_DIGITS_2 = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD "
    "CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS "
    "GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL "
    "MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK "
    "PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS "
    "TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD YER ZAR ZMW ZWG"
)
_DIGITS_0 = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_DIGITS_3 = "BHD IQD JOD KWD LYD OMR TND"
_DIGITS_4 = "CLF UYW"

MINOR_DIGITS: dict[str, int] = {
    code: digits
    for codes, digits in ((_DIGITS_2, 2), (_DIGITS_0, 0), (_DIGITS_3, 3), (_DIGITS_4, 4))
    for code in codes.split()
}
"""Digits after the decimal point, by currency code: EUR 2, JPY 0, BHD 3."""
