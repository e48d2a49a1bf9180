"""The price of each transfer, from the fee and the rate that it names: fee, rate, and declines for the fee.

`spark.checks.transform` judges on the row alone whether the rate leads to the converted amount. So here the rate must
be the one that was in force, and the fee what its schedule leads to.
"""

from typing import Final

from pyspark.sql import DataFrame

from shared.events.catalogue import LEDGER_TRANSFERS, REFERENCE_FEES, REFERENCE_RATES
from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.transfers import DeclineReason
from spark.checks.transform import with_fault
from spark.decisions.reference import compacted_before_ms, decided, with_choices
from spark.night import Amount, Night

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
