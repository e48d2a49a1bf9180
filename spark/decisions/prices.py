"""The price of each transfer: fee, rate, the converted amount, and declines for one of them.

Invariant: on the row alone, `with_fault` judges exactly whether the rate leads to the converted amount. Products are
DECIMAL(38,0), and a value that does not fit exceeds the largest amount. A claimed result is checked by
multiplication, so nothing is ever divided. By the versions that a transfer names, `check` judges whether the rate was
in force, and whether the fee is what its schedule leads to.
"""

from typing import Final

from pyspark.sql import DataFrame

from shared.events.catalogue import LEDGER_TRANSFERS, REFERENCE_FEES, REFERENCE_RATES
from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import DeclineReason
from spark.decisions.reference import compacted_before_ms, decided, with_choices
from spark.night import Amount, Night

_RATE_FORM = "^(0|[1-9][0-9]{0,11})([.][0-9]{1,12})?$"  # as transform takes them; see shared.events.reference

_PLACES = "if(instr(rate, '.') > 0, length(rate) - instr(rate, '.'), 0)"
# Where the fee is too large, the payment is declined whatever its price, and no fee is named
_BY_FEE = f"(decline <=> '{DeclineReason.AMOUNT_TOO_LARGE.value}' and fee_minor = 0)"
_NONE_BUT_FEE = f"(decline is null or {_BY_FEE})"
_CONVERTED = (
    f"currency <> credit_currency and amount_minor between 1 and {MAX_AMOUNT_MINOR} and rlike(rate, '{_RATE_FORM}')"
)


def with_fault(transfers: DataFrame) -> DataFrame:
    """Return rows of `transfers` with `price_fault`: what is wrong with the price, for people, or null."""
    exponents = transfers.selectExpr(
        "*", f"if({_CONVERTED}, {_PLACES} + {_digits('currency')} - {_digits('credit_currency')}, null) as exponent"
    )
    # A rate of 1.0850 is 10850 at 4 places: the result in minor units is amount * 10850 / 10^(4 + digits - credit's)
    products = exponents.selectExpr(
        "*",
        f"if(exponent is null, null, {_power('exponent')}) as divisor",
        f"""if(exponent is null, null, try_multiply(
            try_multiply(cast(amount_minor as decimal(19,0)) * 2, cast(replace(rate, '.', '') as decimal(24,0))),
            {_power("-exponent")})) as doubled""",
    )
    bounds = products.selectExpr(
        "*",
        *(
            f"if(divisor is null, null, try_multiply({bound}, divisor)) as {name}"
            for name, bound in {
                "low": "cast(credit_minor as decimal(19,0)) * 2 - 1",
                "high": "cast(credit_minor as decimal(19,0)) * 2 + 1",
                "too_large": f"cast({2 * MAX_AMOUNT_MINOR + 1} as decimal(17,0))",
            }.items()
        ),
    )
    return bounds.selectExpr("*", f"{_FAULT} as price_fault")


def _digits(currency: str) -> str:
    """Return the digits of a currency's minor unit; null for an unknown one."""
    cases = []
    for digits in sorted(set(MINOR_DIGITS.values())):
        codes = ", ".join(f"'{code}'" for code, number in MINOR_DIGITS.items() if number == digits)
        cases.append(f"when {currency} in ({codes}) then {digits}")
    return f"(case {' '.join(cases)} end)"


def _power(exponent: str) -> str:
    """Return ten to the power of a number of at most 16, 1 below 0."""
    return f"cast(rpad('1', 1 + greatest(0, {exponent}), '0') as decimal(17,0))"


def _declined(reason: DeclineReason) -> str:
    return f"(credit_minor = 0 and (decline <=> '{reason.value}' or {_BY_FEE}))"


_ROUNDED = "(doubled > low and doubled < high or credit_minor % 2 = 0 and (doubled = low or doubled = high))"
_CONVERSION = """concat(amount_minor, ' ', currency, ' at ', coalesce(rate, 'no rate'), ' became ', credit_minor, ' ',
    credit_currency, coalesce(concat(', declined: ', decline), ''))"""

_FAULT: Final = f"""case
    when fee_minor not between 0 and {MAX_AMOUNT_MINOR} or fee_minor <> 0 and instr(debtor, '@') > 0
        then concat('charged a fee of ', fee_minor)
    when currency = credit_currency
        then if(rate is null and credit_minor = amount_minor and {_NONE_BUT_FEE}, null, {_CONVERSION})
    when rate is null then if({_declined(DeclineReason.NO_RATE)}, null, {_CONVERSION})
    when exponent is null then {_CONVERSION}
    when doubled is null or doubled >= too_large
        then if({_declined(DeclineReason.AMOUNT_TOO_LARGE)}, null, {_CONVERSION})
    when doubled <= divisor then if({_declined(DeclineReason.AMOUNT_VANISHES)}, null, {_CONVERSION})
    else if(coalesce({_ROUNDED}, false) and {_NONE_BUT_FEE}, null, {_CONVERSION}) end"""


CHECK: Final = "prices"

_TOO_LARGE: Final = f"decline <=> '{DeclineReason.AMOUNT_TOO_LARGE.value}'"
_CONVERTS: Final = "(currency <> credit_currency)"
# Whatever is larger than any amount may be is too large, unless the schedule bounds it
_HUGE: Final = "100000000000000000"
_HALF_EVEN: Final = f"""if(doubled is null or doubled >= {_HUGE}BD * 20000, {_HUGE}BD,
    get(transform(array(cast(doubled as decimal(22,0)) + 10000), n ->
        cast(n div 20000 as decimal(19,0)) - if(n % 20000 = 0 and (n div 20000) % 2 = 1, 1, 0)), 0))"""
_SHARE: Final = f"""get(transform(
    array(try_multiply(cast(amount_minor as decimal(19,0)) * 2, cast(fee.basis_points as decimal(17,0)))),
    doubled -> {_HALF_EVEN}), 0)"""
_CHARGE: Final = f"""if(fee is null or instr(debtor, '@') > 0, cast(0 as decimal(22,0)), cast(
    least(greatest(cast(fee.fixed_minor as decimal(20,0)) + {_SHARE}, cast(fee.min_minor as decimal(20,0))),
        cast(fee.max_minor as decimal(20,0))) as decimal(22,0)))"""
_FEE_IS_RIGHT: Final = f"""exists(charges, charge -> if(charge > {MAX_AMOUNT_MINOR},
    fee_minor = 0 and {_TOO_LARGE}, fee_minor = charge and (not ({_TOO_LARGE}) or converts_too_large)))"""
_RATE_IS_RIGHT: Final = "exists(rate_choices, one -> one.rate <=> rate)"
_SHOWN: Final = """concat('it has fee ', fee_minor, ', rate ', coalesce(rate, 'none'), coalesce(concat(', declined: ',
    decline), ''), '; in force were fee ', coalesce(cast(get(charges, 0) as string), 'unknown'), ', rate ',
    coalesce(get(rate_choices, 0).rate, 'none'))"""


def check(night: Night, known: DataFrame) -> DataFrame:
    """Judge each transfer of this run; `known` are `spark.decisions.reference.versions`."""
    rows = with_fault(night.new("transfers")).selectExpr(
        "*",
        "unix_millis(timestamp) as used_ms",
        "priced_by is not null as said",
        "currency as fee_key",
        "get(priced_by, 0) as fee_named",
        f"if({_CONVERTS}, concat(currency, '/', credit_currency), null) as rate_key",
        f"if({_CONVERTS}, get(priced_by, 1), null) as rate_named",
        "exponent is not null and (doubled is null or doubled >= too_large) as converts_too_large",
    )
    before_ms = compacted_before_ms(night)
    for topic, prefix in ((REFERENCE_FEES, "fee"), (REFERENCE_RATES, "rate")):
        rows = with_choices(rows, known, topic, prefix, before_ms, broadcast=True)
    rows = rows.selectExpr(
        "*",
        f"transform(fee_choices, fee -> {_CHARGE}) as charges",
        f"if(not {_CONVERTS} and get(priced_by, 1) is not null, 'it names a rate, and converts nothing', null) as idle",
    )
    faults = "concat_ws('; ', fee_fault, rate_fault, idle)"
    right = f"coalesce({_FEE_IS_RIGHT} and {_RATE_IS_RIGHT}, false)"
    judged = rows.selectExpr("*", f"{faults} as faults").where(f"faults <> '' or not {right}")
    return decided(
        judged,
        CHECK,
        f"if(faults <> '', faults, {_SHOWN})",
        open_="faults = '' and not (fee_complete and rate_complete)",
        at=(f"'{LEDGER_TRANSFERS}'", "partition", "offset", "payment_id"),
        amount=Amount("currency", "amount_minor"),
    )
