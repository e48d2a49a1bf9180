"""Transfers match the accepted payments, and are priced exactly by their own rate."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from deploy.checkers.verdict import Kind
from services.transform.domain import ReferenceData, price
from shared.events.clients import OPERATOR
from shared.events.payments import DAY_MS, MAX_AMOUNT_MINOR, Payment, encode_accepted
from shared.events.reference import Fee, Rate
from shared.events.transfers import Transfer, decode_transfer, encode_transfer
from spark.checks import intake
from spark.decisions.prices import with_fault
from spark.night import frame
from spark.schemas import TABLES
from tests.payments import decode_instruction
from tests.pipeline.nights import found, night
from tests.planted import ALICE, Clean

CHECK = "accepted:transfers"

RATES = {
    "EUR/CZK": "24.5",
    "CZK/EUR": "0.0405",
    "EUR/JPY": "161",
    "JPY/BHD": "0.0023",
    "BHD/JPY": "400.000000000001",
    "CLF/JPY": "999999999999.999999999999",
    "USD/EUR": "0.5",
    "USD/JPY": "0",
}
REFERENCE = ReferenceData(
    {"EUR": Fee(fixed_minor=3, basis_points=10)}, {pair: Rate(rate) for pair, rate in RATES.items()}
)
TOO_DEAR = ReferenceData(
    {"EUR": Fee(fixed_minor=MAX_AMOUNT_MINOR + 1), "USD": Fee(fixed_minor=MAX_AMOUNT_MINOR + 1)}, REFERENCE.rates
)


def payment(amount_minor: int, currency: str, credit_currency: str | None, debtor: str = ALICE) -> Payment:
    return Payment("p", debtor, "bob", amount_minor, currency, 2, credit_currency)


def faults(spark: SparkSession, transfers: list[Transfer]) -> list[Any]:
    """Faults of each price."""
    rows = [
        {**msgspec.structs.asdict(transfer), "priced_by": None, "offset": number}
        for number, transfer in enumerate(transfers)
    ]
    judged = with_fault(frame(spark, TABLES["transfers"].schema, rows)).select("offset", "price_fault").collect()
    assert len(judged) == len(transfers)
    return [row["price_fault"] for row in sorted(judged, key=lambda row: row["offset"])]


def test_prices_as_transform_makes_them_are_right(spark: SparkSession) -> None:
    amounts = (1, 2, 3, 5, 10, 15, 99, 100, 12_345, 10**9 + 7, MAX_AMOUNT_MINOR - 1, MAX_AMOUNT_MINOR)
    pairs = [*(pair.split("/") for pair in RATES), ("EUR", None), ("EUR", "EUR"), ("CZK", "JPY")]
    payments = [payment(amount, str(currency), asked) for amount in amounts for currency, asked in pairs]
    payments.append(payment(100, "EUR", None, "cash@1"))
    made = [price(one, reference, "2026-01-05") for one in payments for reference in (REFERENCE, TOO_DEAR)]
    assert {one.decline for one in made} == {None, "no_rate", "amount_vanishes", "amount_too_large"}
    assert set(faults(spark, made)) == {None}


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_result_that_is_one_off_is_wrong(spark: SparkSession, difference: int) -> None:
    amounts = (1, 3, 5, 7, 40, 12_345, 10**12)
    made = [price(payment(amount, *pair.split("/")), REFERENCE, "2026-01-05") for amount in amounts for pair in RATES]
    booked = [one for one in made if one.decline is None]
    off = [msgspec.structs.replace(one, credit_minor=one.credit_minor + difference) for one in booked]
    assert len(off) > 20
    assert None not in faults(spark, off)


def test_impossible_prices(spark: SparkSession) -> None:
    plain = price(payment(100, "EUR", None), REFERENCE, "2026-01-05")
    converted = price(payment(100, "EUR", "CZK"), REFERENCE, "2026-01-05")
    changes: list[tuple[Transfer, dict[str, Any]]] = [
        (plain, {"credit_minor": 99}),
        (plain, {"rate": "1"}),
        (plain, {"decline": "no_rate"}),
        (plain, {"decline": "amount_too_large"}),  # only without a fee
        (plain, {"fee_minor": -1}),
        (plain, {"fee_minor": 2**63 - 1}),
        (plain, {"debtor": "cash@1"}),  # pays no fee
        (converted, {"decline": "no_rate"}),
        (converted, {"decline": "amount_vanishes", "credit_minor": 0}),
        (converted, {"rate": None}),
        (converted, {"rate": "24.5 "}),
        (converted, {"rate": "0." + "0" * 40 + "1"}),
        (converted, {"rate": "1e3"}),
        (converted, {"credit_minor": 2**63 - 1}),
        (converted, {"amount_minor": 2**63 - 1}),
        (converted, {"amount_minor": 0, "credit_minor": 0}),
        (converted, {"currency": "XXX"}),
    ]
    wrong = [msgspec.structs.replace(one, **change) for one, change in changes]
    assert [change for (_, change), fault in zip(changes, faults(spark, wrong), strict=True) if fault is None] == []


def test_transfers_that_differ_from_the_accepted_payment(spark: SparkSession) -> None:
    world = Clean()
    fields: dict[str, Any] = {"reference": "other", "value_date": "2026-01-06", "credit_currency": "EUR"}
    paid = [world.pay(f"q{number}", ALICE, "bob", 50) for number in range(len(fields))]
    for trail, (name, value) in zip(paid, fields.items(), strict=True):
        _change(world, trail.transfer, **{name: value})
    _change(world, world.converted.transfer, rate="0.05")
    checked = intake.check_transform(night(spark, world))
    expected = [("amount", CHECK, str(trail.transfer)) for trail in (*paid, world.converted)]
    # The last one is also priced wrong
    assert found(checked) == sorted([*expected, ("amount", CHECK, str(paid[-1].transfer))])
    assert checked.figures == {"transfers": 10}


def test_a_missing_value_date_is_the_day_of_receipt(spark: SparkSession) -> None:
    world = Clean()
    right, wrong = (world.pay(f"q{number}", ALICE, "bob", 50) for number in range(2))
    for trail, value_date in ((right, "2026-01-04"), (wrong, "2026-01-05")):
        accepted = world.at(trail.accepted)
        payment = msgspec.structs.replace(decode_instruction(world.at(trail.raw).value or b""), value_date=None)
        world.change(trail.accepted, encode_accepted(payment, accepted.timestamp_ms - DAY_MS, OPERATOR))
        _change(world, trail.transfer, value_date=value_date)
    assert found(intake.check_transform(night(spark, world))) == [("amount", CHECK, str(wrong.transfer))]
    assert {one.where for one in world.audit().violations if one.kind == Kind.ALTERED_TRANSFER} == {str(wrong.transfer)}


def _change(world: Clean, where: Any, **changes: Any) -> None:
    world.change(
        where, encode_transfer(msgspec.structs.replace(decode_transfer(world.at(where).value or b""), **changes))
    )


def test_a_result_half_above_the_largest_amount_is_too_large(spark: SparkSession) -> None:
    rates = ReferenceData({}, {"EUR/USD": Rate("1.5")})
    made = price(payment((2 * MAX_AMOUNT_MINOR + 1) // 3, "EUR", "USD"), rates, "2026-01-05")
    assert made.decline == "amount_too_large"
    booked = msgspec.structs.replace(made, decline=None, credit_minor=MAX_AMOUNT_MINOR + 1)
    right, wrong = faults(spark, [made, booked])
    assert right is None
    assert wrong is not None
