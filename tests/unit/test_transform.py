"""transform: fees, conversions and value dates, and invalid internal input."""

import msgspec
import pytest

from services.transform.domain import ReferenceData, convert_minor, divide_half_even, fee_minor, price
from services.transform.service import TransformHandler
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.codec import InternalInputError
from shared.events.payments import (
    MAX_AMOUNT_MINOR,
    AccountOpening,
    Instruction,
    Payment,
    Reversal,
    encode_accepted,
    encode_instruction,
)
from shared.events.reference import Fee, Rate
from shared.events.transfers import AccountOpened, PricedBy, Transfer, TransferReversal, decode_transfer
from tests.partitions import PARTITIONS, partition_for

DEBTOR = "2378"
PARTITION = partition_for(DEBTOR)
PAYMENT = Payment("p-1", DEBTOR, "cash@3", 1000, "EUR", 2, reference="rent")
ORIGIN = (("origin", b"payments.raw:1:2"), ("source", b"payments.raw:1:2"))
NEW_YEAR_1993_MS = 725_846_400_000


def priced(payment: Payment, fees: dict[str, Fee] | None = None, rates: dict[str, str] | None = None) -> Transfer:
    reference = ReferenceData(fees or {}, {pair: Rate(rate) for pair, rate in (rates or {}).items()})
    return price(payment, reference, "1993-01-01")


def changed(**changes: object) -> Payment:
    return msgspec.structs.replace(PAYMENT, **changes)


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [(5, 10, 0), (15, 10, 2), (25, 10, 2), (26, 10, 3), (24, 10, 2), (0, 3, 0), (1, 3, 0), (2, 3, 1), (7, 1, 7)],
)
def test_halves_round_to_even(numerator: int, denominator: int, expected: int) -> None:
    assert divide_half_even(numerator, denominator) == expected


@pytest.mark.parametrize(
    ("amount_minor", "fee", "expected"),
    [
        (1000, Fee(), 0),
        (1000, Fee(fixed_minor=35), 35),
        (1000, Fee(fixed_minor=35, basis_points=50), 40),
        (250, Fee(basis_points=20), 0),  # 0.5
        (750, Fee(basis_points=20), 2),  # 1.5
        (1000, Fee(basis_points=50, min_minor=10), 10),
        (1_000_000, Fee(basis_points=50, max_minor=100), 100),
        (1, Fee(fixed_minor=5, max_minor=0), 0),
        (MAX_AMOUNT_MINOR, Fee(basis_points=1), 900_719_925_474),
    ],
)
def test_fees(amount_minor: int, fee: Fee, expected: int) -> None:
    assert fee_minor(amount_minor, fee) == expected


@pytest.mark.parametrize(
    ("amount_minor", "rate", "pair", "expected"),
    [
        (1000, "1.0850", "EUR/USD", 1085),
        (1000, "1", "EUR/USD", 1000),
        (10_00, "161.5", "EUR/JPY", 1615),
        (1615, "0.0061919504643", "JPY/EUR", 1000),
        (100, "0.408", "EUR/BHD", 408),
        (1, "0.5", "EUR/USD", 0),
        (3, "0.5", "EUR/USD", 2),
        (5, "0.5", "EUR/USD", 2),
        (1000, "0", "EUR/USD", 0),
        (MAX_AMOUNT_MINOR, "1.000000000001", "EUR/USD", MAX_AMOUNT_MINOR + 9007),
    ],
)
def test_conversions(amount_minor: int, rate: str, pair: str, expected: int) -> None:
    assert convert_minor(amount_minor, rate, *pair.split("/")) == expected


def test_a_payment_without_fee_or_conversion_passes_unchanged() -> None:
    expected = Transfer(
        "p-1",
        DEBTOR,
        "cash@3",
        1000,
        "EUR",
        1000,
        "EUR",
        "1993-01-01",
        reference="rent",
        priced_by=PricedBy(None, None),
    )
    assert priced(PAYMENT) == expected
    assert priced(changed(credit_currency="EUR")) == expected


def test_a_transfer_contains_its_fee_and_rate() -> None:
    transfer = priced(changed(credit_currency="USD"), {"EUR": Fee(10), "USD": Fee(99)}, {"EUR/USD": "1.0850"})
    assert (transfer.fee_minor, transfer.rate, transfer.credit_minor) == (10, "1.0850", 1085)
    assert (transfer.currency, transfer.credit_currency, transfer.decline) == ("EUR", "USD", None)


@pytest.mark.parametrize(
    ("credit_currency", "places"),
    [
        (None, PricedBy("0:7", None)),
        ("EUR", PricedBy("0:7", None)),
        ("USD", PricedBy("0:7", "1:3")),
        ("JPY", PricedBy("0:7", None)),
    ],
)
def test_a_transfer_names_the_records_in_force(credit_currency: str | None, places: PricedBy) -> None:
    reference = ReferenceData({"EUR": Fee(10)}, {"EUR/USD": Rate("1.0850")}, {"EUR": "0:7"}, {"EUR/USD": "1:3"})
    assert price(changed(credit_currency=credit_currency), reference, "1993-01-01").priced_by == places
    of_house = changed(debtor="cash@0", credit_currency=credit_currency)
    assert price(of_house, reference, "1993-01-01").priced_by == places


def test_a_given_value_date_stays() -> None:
    assert priced(changed(value_date="1992-12-31")).value_date == "1992-12-31"


def test_a_house_account_pays_no_fee() -> None:
    assert priced(changed(debtor="cash@1", creditor=DEBTOR), {"EUR": Fee(10)}).fee_minor == 0


@pytest.mark.parametrize(
    ("amount_minor", "rates", "decline"),
    [
        (1000, {}, "no_rate"),
        (1000, {"USD/EUR": "0.9217"}, "no_rate"),
        (1, {"EUR/USD": "0.5"}, "amount_vanishes"),
        (1000, {"EUR/USD": "0"}, "amount_vanishes"),
        (MAX_AMOUNT_MINOR, {"EUR/USD": "1.1"}, "amount_too_large"),
    ],
)
def test_a_payment_that_cannot_be_converted_is_a_decline(
    amount_minor: int, rates: dict[str, str], decline: str
) -> None:
    transfer = priced(changed(amount_minor=amount_minor, credit_currency="USD"), rates=rates)
    assert (transfer.decline, transfer.credit_minor) == (decline, 0)


def test_a_fee_beyond_every_amount_is_a_decline() -> None:
    transfer = priced(PAYMENT, {"EUR": Fee(fixed_minor=MAX_AMOUNT_MINOR + 1)})
    assert (transfer.decline, transfer.fee_minor) == ("amount_too_large", 0)


def record(value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ORIGIN) -> Record:
    return Record(PAYMENTS_ACCEPTED, PARTITION, 7, NEW_YEAR_1993_MS - 1, DEBTOR.encode(), value, headers)


def test_a_payment_goes_to_its_debtors_partition_with_the_day_of_receipt() -> None:
    handler = TransformHandler(PARTITION, ReferenceData({}, {}), partitions=PARTITIONS)
    [output] = handler.process(record(encode_instruction(PAYMENT)))
    assert (output.topic, output.partition, output.key) == (LEDGER_TRANSFERS, PARTITION, DEBTOR.encode())
    source = b"payments.accepted:%d:7" % PARTITION
    assert output.headers == (("origin", b"payments.raw:1:2"), ("source", source))
    assert output.value is not None
    transfer = decode_transfer(output.value)
    assert isinstance(transfer, Transfer)
    assert transfer.value_date == "1992-12-31"
    assert list(handler.store.changes()) == []


@pytest.mark.parametrize(
    "instruction", [PAYMENT, Reversal("r-1", DEBTOR, "p-1", 2), AccountOpening("o-1", DEBTOR, schema_version=2)]
)
def test_the_day_of_receipt_is_that_of_the_raw_record(instruction: Instruction) -> None:
    """Received at 23:59, and accepted after midnight."""
    handler = TransformHandler(PARTITION, ReferenceData({}, {}), partitions=PARTITIONS)
    accepted = record(encode_accepted(instruction, NEW_YEAR_1993_MS - 60_000, OPERATOR))
    [output] = handler.process(accepted._replace(timestamp_ms=NEW_YEAR_1993_MS + 60_000))
    assert output.value is not None
    ordered = decode_transfer(output.value)
    assert isinstance(ordered, Transfer | TransferReversal | AccountOpened)
    assert (ordered.value_date, ordered.submitted_by) == ("1992-12-31", OPERATOR)


@pytest.mark.parametrize("submitted_by", [SubmittedBy("alpha", "0123456789abcdef"), OPERATOR, None])
@pytest.mark.parametrize("owner", [None, "beta"])
def test_an_opening_is_for_its_client_unless_it_names_another(
    submitted_by: SubmittedBy | None, owner: str | None
) -> None:
    handler = TransformHandler(PARTITION, ReferenceData({}, {}), partitions=PARTITIONS)
    opening = AccountOpening("o-1", DEBTOR, 500, 3, owner, 2)
    [output] = handler.process(record(encode_accepted(opening, NEW_YEAR_1993_MS, submitted_by)))
    assert (output.topic, output.partition, output.key) == (LEDGER_TRANSFERS, PARTITION, DEBTOR.encode())
    client = "operator" if submitted_by is None else submitted_by.client
    assert output.value is not None
    assert decode_transfer(output.value) == AccountOpened(
        DEBTOR, 500, owner or client, 0, "o-1", 3, "1993-01-01", submitted_by
    )


def test_fields_of_a_later_version_are_passed_on() -> None:
    handler = TransformHandler(PARTITION, ReferenceData({}, {}), partitions=PARTITIONS)
    known = encode_accepted(PAYMENT, NEW_YEAR_1993_MS, OPERATOR)
    [expected] = handler.process(record(known))
    [output] = handler.process(record(known[:-1] + b',"channel":{"name":"branch"},"rate":"9"}'))
    assert expected.value is not None
    assert output.value == expected.value[:-1] + b',"channel":{"name":"branch"}}'


def test_a_reversal_passes_without_a_price() -> None:
    handler = TransformHandler(PARTITION, ReferenceData({"EUR": Fee(10)}, {}), partitions=PARTITIONS)
    [output] = handler.process(record(encode_instruction(Reversal("r-1", DEBTOR, "p-1", 2, reference="oops"))))
    assert output.value is not None
    assert decode_transfer(output.value) == TransferReversal("r-1", DEBTOR, "p-1", "1992-12-31", "oops")


def test_reference_data_applies_from_its_change_on() -> None:
    fees: dict[str, Fee] = {}
    handler = TransformHandler(PARTITION, ReferenceData(fees, {}), partitions=PARTITIONS)
    charged = []
    for fee in (Fee(1), Fee(2)):
        fees["EUR"] = fee
        [output] = handler.process(record(encode_instruction(PAYMENT)))
        assert output.value is not None
        transfer = decode_transfer(output.value)
        assert isinstance(transfer, Transfer)
        charged.append(transfer.fee_minor)
    assert charged == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        record(None),
        record(b"{}"),
        record(b"\xff"),
        record(encode_instruction(PAYMENT), headers=()),
        record(encode_instruction(changed(debtor="cash@" + str((PARTITION + 1) % 6)))),
    ],
)
def test_a_record_that_ingest_does_not_write_is_a_defect(bad: Record) -> None:
    with pytest.raises(InternalInputError, match=f"payments.accepted:{PARTITION}:7"):
        TransformHandler(PARTITION, ReferenceData({}, {}), partitions=PARTITIONS).process(bad)
