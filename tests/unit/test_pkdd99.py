"""Lines of the PKDD'99 data set as payments: exact amounts, the right house account, nothing dropped."""

import pytest

from deploy.load.pkdd99 import MalformedLineError, house_account, is_header, parse_line, payment, value_of
from shared.events.payments import Payment
from shared.events.validation import decode_payment
from tests.partitions import PARTITIONS, partition_for

CREDIT = b'695247;2378;930101;"PRIJEM";"VKLAD";700.00;700.00;"";;'
FEE = b'519983;1775;931231;"VYDAJ";"VYBER";14.60;25786.20;"SLUZBY";;'
TRANSFER = b'1117;3818;930215;"VYDAJ";"PREVOD NA UCET";3372.7;-12.05;"UVER";"YZ";17972155\r\n'


def test_credit_goes_from_the_house_to_the_client() -> None:
    shard = partition_for("2378")
    assert payment(parse_line(CREDIT), PARTITIONS) == Payment(
        "695247", f"cash@{shard}", "2378", 70_000, "CZK", 2, None, "1993-01-01", "VKLAD"
    )


def test_everything_else_goes_from_the_client_to_the_house() -> None:
    sent = payment(parse_line(FEE), PARTITIONS)
    assert (sent.debtor, sent.creditor) == ("1775", f"fees@{partition_for('1775')}")
    assert sent.amount_minor == 1460


def test_other_side_goes_into_the_reference() -> None:
    transaction = parse_line(TRANSFER)
    assert payment(transaction, PARTITIONS).reference == "PREVOD NA UCET UVER YZ 17972155"
    assert (transaction.amount_minor, transaction.balance_minor) == (337_270, -1205)
    assert (transaction.change_minor, transaction.day) == (-337_270, 19930215)


@pytest.mark.parametrize(
    ("operation", "symbol", "house"),
    [
        ("VKLAD", "", "cash"),
        ("VYBER", "", "cash"),
        ("VYBER", " ", "cash"),
        ("VYBER", "SIPO", "cash"),
        ("VYBER KARTOU", "", "cash"),
        ("VYBER", "SANKC. UROK", "interest"),
        ("", "UROK", "interest"),
        ("VYBER", "SLUZBY", "fees"),
        ("PREVOD Z UCTU", "DUCHOD", "clearing"),
        ("PREVOD NA UCET", "SIPO", "clearing"),
        ("PREVOD NA UCET", "POJISTNE", "insurance"),
        ("PREVOD NA UCET", "UVER", "loans"),
        ("", "", "other"),
        ("SOMETHING NEW", "", "other"),
    ],
)
def test_house_account(operation: str, symbol: str, house: str) -> None:
    line = f'1;2378;930101;"VYDAJ";"{operation}";1.00;1.00;"{symbol}";;'.encode()
    assert house_account(parse_line(line), PARTITIONS) == f"{house}@{partition_for('2378')}"


@pytest.mark.parametrize(
    ("amount", "minor"), [("0", 0), ("7", 700), ("7.1", 710), ("7.01", 701), ("9999999999999.99", 999_999_999_999_999)]
)
def test_amounts_are_exact(amount: str, minor: int) -> None:
    line = f'1;2;930101;"PRIJEM";"VKLAD";{amount};{amount};"";;'.encode()
    transaction = parse_line(line)
    assert (transaction.amount_minor, transaction.balance_minor) == (minor, minor)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "1 columns"),
        (b"1;2;3", "3 columns"),
        (CREDIT.replace(b"695247", b"x"), "trans_id is 'x'"),
        (CREDIT.replace(b"2378", b""), "account_id is ''"),
        (CREDIT.replace(b"930101", b"930230"), "date is '930230'"),
        (CREDIT.replace(b"930101", b"19930101"), "date is '19930101'"),
        (CREDIT.replace(b"PRIJEM", b"PRIJMY"), "type is 'PRIJMY'"),
        (CREDIT.replace(b"700.00", b"700,00"), "amount is '700,00'"),
        (CREDIT.replace(b"700.00", b"700.001"), "amount is '700.001'"),
        (CREDIT.replace(b";700.00;", b";-700.00;", 1), "the type says which way"),
        (CREDIT.replace(b"VKLAD", b"\xff"), "not UTF-8"),
        (CREDIT.replace(b"700.00", b"7e2"), "amount is '7e2'"),
    ],
)
def test_malformed_line_is_named_and_sent_as_it_is(line: bytes, message: str) -> None:
    with pytest.raises(MalformedLineError, match=message):
        parse_line(line)
    assert value_of(line, PARTITIONS) == (line, False)


@pytest.mark.parametrize("line", [CREDIT, FEE, TRANSFER])
def test_mapped_line_passes_the_validator(line: bytes) -> None:
    value, mapped = value_of(line, PARTITIONS)
    assert mapped
    assert decode_payment(value, PARTITIONS) == payment(parse_line(line), PARTITIONS)


def test_header_is_recognized_with_and_without_quotes() -> None:
    plain = b"trans_id;account_id;date;type;operation;amount;balance;k_symbol;bank;account\n"
    assert is_header(plain)
    assert is_header(plain.replace(b"date", b'"date"'))
    assert not is_header(CREDIT)
    assert not is_header(b'{"payment_id":"1"}')
