"""transform's outcome of each accepted payment: one transfer with the same fields, priced at its own rate.

The price is judged on the row alone, and exactly. Products are DECIMAL(38,0), and one that does not fit is larger than
any amount may be. A claimed result is checked by multiplication, so nothing is ever divided.
"""

from typing import Final

from pyspark.sql import DataFrame

from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import DeclineReason
from spark import links
from spark.agreements import Agreement, Link, Side
from spark.checks import intake
from spark.night import NO_FINDING, Checked, Kind, Night, finding
from spark.schemas import UNDECODABLE
from spark.settling import hidden, settle

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
_SHOWN = """concat(amount_minor, ' ', currency, ' at ', coalesce(rate, 'no rate'), ' became ', credit_minor, ' ',
    credit_currency, coalesce(concat(', declined: ', decline), ''))"""

_FAULT: Final = f"""case
    when fee_minor not between 0 and {MAX_AMOUNT_MINOR} or fee_minor <> 0 and instr(debtor, '@') > 0
        then concat('charged a fee of ', fee_minor)
    when currency = credit_currency
        then if(rate is null and credit_minor = amount_minor and {_NONE_BUT_FEE}, null, {_SHOWN})
    when rate is null then if({_declined(DeclineReason.NO_RATE)}, null, {_SHOWN})
    when exponent is null then {_SHOWN}
    when doubled is null or doubled >= too_large
        then if({_declined(DeclineReason.AMOUNT_TOO_LARGE)}, null, {_SHOWN})
    when doubled <= divisor then if({_declined(DeclineReason.AMOUNT_VANISHES)}, null, {_SHOWN})
    else if(coalesce({_ROUNDED}, false) and {_NONE_BUT_FEE}, null, {_SHOWN}) end"""


_CHECK = "accepted:transfers"
_MISPRICED = finding(Kind.AMOUNT, _CHECK, "{fault}", fault="price_fault")
_TEXTS = "debtor creditor currency credit_currency value_date reference reverses"
_OWN = {name: name for name in ("debtor", "reference")}
# Without a value date, transform takes the day of receipt; in records of former versions, that of the accepted record
_RECEIVED = "coalesce(timestamp_millis(received_at_ms), timestamp)"
_DATED = {"value_date": f"coalesce(value_date, date_format({_RECEIVED}, 'yyyy-MM-dd'))"}
_UNREAD = {"kind": f"'{UNDECODABLE}'", "payment_id": "cast(null as string)"}

LINK = Link(
    name="transform",
    check=_CHECK,
    service="transform",
    source="payments.accepted",
    fields={**dict.fromkeys(_TEXTS.split(), "string"), "amount_minor": "bigint"},
    parents={
        "payments": Side(
            {
                "kind": "'payment'",
                **_OWN,
                **_DATED,
                **{name: name for name in ("creditor", "amount_minor", "currency")},
                "credit_currency": "coalesce(credit_currency, currency)",
            }
        ),
        "reversals": Side({"kind": "'reversal'", **_OWN, **_DATED, "reverses": "reverses"}),
        UNDECODABLE: Side(_UNREAD, where="topic = 'payments.accepted'"),
    },
    children={
        "transfers": Side(
            {
                "kind": "'transfer'",
                **_OWN,
                **{name: name for name in ("creditor", "amount_minor", "currency", "credit_currency", "value_date")},
                "fault": f"if(price_fault is null, {NO_FINDING}, {_MISPRICED})",
            },
            prepare=with_fault,
        ),
        "transfer_reversals": Side({"kind": "'reversal'", **_OWN, "value_date": "value_date", "reverses": "reverses"}),
        # Others write to this topic as well: the source shows whether it is transform's
        UNDECODABLE: Side(_UNREAD, where="topic = 'ledger.transfers' and source_topic = 'payments.accepted'"),
    },
    agreements={
        "transfer": Agreement(("payment",), intake.PAYMENT),
        "reversal": Agreement(("reversal",), intake.REVERSAL),
    },
    money=("currency", "amount_minor"),
)

_METRICS = {"transfers": "count_if(c_fresh and c_kind in ('transfer', 'reversal'))"}


def check(night: Night) -> Checked:
    """Compare each accepted payment or reversal with its transfer."""
    joined = links.join(night, LINK, _METRICS)
    settled = settle(night, LINK, joined, hidden(night, LINK, joined))
    return Checked(settled.breaks, {**joined.metrics, **settled.figures}, settled.in_flight, settled.carry)
