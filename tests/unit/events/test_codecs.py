"""Golden bytes of every event but effects. Every written version must stay readable: add, never edit."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
import pytest

from shared.events.clients import OPERATOR, SubmittedBy, decode_submitted_by, encode_submitted_by
from shared.events.headers import Coordinates, header
from shared.events.identity import content_digest, identity_digest
from shared.events.installation import (
    Installation,
    Ownership,
    decode_installation,
    decode_ownership,
    encode_installation,
    encode_ownership,
)
from shared.events.payments import (
    AcceptedOpening,
    AccountOpening,
    Payment,
    Repeat,
    Reversal,
    decode_accepted,
    encode_accepted,
    encode_instruction,
    encode_repeat,
)
from shared.events.postings import (
    OF_INSTALLATION,
    OF_ORIGIN,
    Account,
    AccountTerms,
    Decline,
    Entry,
    NotifiedBy,
    Posting,
    decode_account,
    decode_ledger_event,
    decode_terms,
    encode_account,
    encode_ledger_event,
    encode_terms,
)
from shared.events.reference import (
    ExpectedBalance,
    Fee,
    Rate,
    decode_expected_balance,
    decode_fee,
    decode_rate,
)
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    DeclineReason,
    PricedBy,
    Transfer,
    TransferReversal,
    decode_transfer,
    encode_transfer,
)
from shared.events.validation import decode_payment
from tests.partitions import PARTITIONS
from tests.payments import decode_instruction

VERSION_1 = (
    b'{"schema_version":1,"payment_id":"171812","account_from":"2378","account_to":"cash@3",'
    b'"amount_minor":70000,"currency":"CZK","occurred_at":"1993-01-01T12:00:00Z","memo":"VKLAD"}'
)
VERSION_2 = (
    b'{"type":"payment","payment_id":"171812","debtor":"2378","creditor":"cash@3","amount_minor":70000,'
    b'"currency":"CZK","schema_version":2,"value_date":"1993-01-01","reference":"VKLAD"}'
)
PAYMENT = Payment("171812", "2378", "cash@3", 70000, "CZK", 2, None, "1993-01-01", "VKLAD")
REVERSAL = Reversal("r-1", "2378", "171812", 2)
OPENING = AccountOpening("o-1", "2378", 500, 3, "alpha", 2)
BY_ALPHA = SubmittedBy("alpha", "0123456789abcdef")


@pytest.mark.parametrize("value", [VERSION_1, VERSION_2])
def test_every_schema_version_is_still_read(value: bytes) -> None:
    assert decode_payment(value, PARTITIONS) == PAYMENT


@pytest.mark.parametrize(
    ("event", "value", "encode", "decode"),
    [
        (PAYMENT, VERSION_2, encode_instruction, decode_instruction),
        (
            REVERSAL,
            b'{"type":"reversal","payment_id":"r-1","debtor":"2378","reverses":"171812","schema_version":2}',
            encode_instruction,
            decode_instruction,
        ),
        (
            OPENING,
            (
                b'{"type":"account_opening","payment_id":"o-1","debtor":"2378","overdraft_minor":500,'
                b'"expected_version":3,"owner":"alpha","schema_version":2}'
            ),
            encode_instruction,
            decode_instruction,
        ),
        (
            AccountOpening("o-1", "2378", None, schema_version=2),
            (
                b'{"type":"account_opening","payment_id":"o-1","debtor":"2378","overdraft_minor":null,'
                b'"schema_version":2}'
            ),
            encode_instruction,
            decode_instruction,
        ),
        (
            Transfer("p", "a", "b", 1, "CZK", 1, "CZK", "1993-01-01", submitted_by=BY_ALPHA),
            (
                b'{"type":"transfer","payment_id":"p","debtor":"a","creditor":"b","amount_minor":1,"currency":"CZK",'
                b'"credit_minor":1,"credit_currency":"CZK","value_date":"1993-01-01",'
                b'"submitted_by":["alpha","0123456789abcdef",false]}'
            ),
            encode_transfer,
            decode_transfer,
        ),
        (
            TransferReversal("r-1", "2378", "171812", "1993-01-02", submitted_by=OPERATOR),
            (
                b'{"type":"reversal","payment_id":"r-1","debtor":"2378","reverses":"171812",'
                b'"value_date":"1993-01-02","submitted_by":["operator","",true]}'
            ),
            encode_transfer,
            decode_transfer,
        ),
        (
            AccountOpened("2378", 0, "alpha", 4, "o-1", 3, "1993-01-01", BY_ALPHA),
            (
                b'{"type":"account_opened","account":"2378","overdraft_minor":0,"owner":"alpha","version":4,'
                b'"command_id":"o-1","expected_version":3,"value_date":"1993-01-01",'
                b'"submitted_by":["alpha","0123456789abcdef",false]}'
            ),
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            AccountClosed("2378", 5),
            b'{"type":"account_closed","account":"2378","version":5}',
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Decline(
                "o-1",
                "2378",
                DeclineReason.STALE_VERSION,
                "1993-01-01",
                opening=True,
                submitted_by=BY_ALPHA,
            ),
            (
                b'{"type":"decline","payment_id":"o-1","debtor":"2378","reason":"stale_version",'
                b'"value_date":"1993-01-01","opening":true,"submitted_by":["alpha","0123456789abcdef",false]}'
            ),
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Account({"CZK": 1}, 500, owner="alpha", version=4),
            b'{"balances":{"CZK":1},"overdraft_minor":500,"owner":"alpha","version":4}',
            encode_account,
            decode_account,
        ),
        (
            AccountTerms("alpha", 5, None, closed=True),
            b'{"owner":"alpha","version":5,"overdraft_minor":null,"closed":true}',
            encode_terms,
            decode_terms,
        ),
        (
            Ownership((0, 7), 1_700_000_000_000),
            b'{"raw_from":[0,7],"made_at_ms":1700000000000}',
            encode_ownership,
            decode_ownership,
        ),
        (BY_ALPHA, b"alpha:0123456789abcdef", encode_submitted_by, decode_submitted_by),
        (OPERATOR, b"operator::house", encode_submitted_by, decode_submitted_by),
        (
            Transfer("171812", "2378", "cash@3", 70000, "CZK", 2800, "EUR", "1993-01-01", 350, "0.0400", "VKLAD"),
            (
                b'{"type":"transfer","payment_id":"171812","debtor":"2378","creditor":"cash@3","amount_minor":70000,'
                b'"currency":"CZK","credit_minor":2800,"credit_currency":"EUR","value_date":"1993-01-01",'
                b'"fee_minor":350,"rate":"0.0400","reference":"VKLAD"}'
            ),
            encode_transfer,
            decode_transfer,
        ),
        (
            TransferReversal("r-1", "2378", "171812", "1993-01-02"),
            b'{"type":"reversal","payment_id":"r-1","debtor":"2378","reverses":"171812","value_date":"1993-01-02"}',
            encode_transfer,
            decode_transfer,
        ),
        (
            CreditLeg("171812", "2378", "cash@3", -2800, "EUR", "1993-01-02", reversal=True),
            (
                b'{"type":"credit_leg","payment_id":"171812","debtor":"2378","creditor":"cash@3",'
                b'"amount_minor":-2800,"currency":"EUR","value_date":"1993-01-02","reversal":true}'
            ),
            encode_transfer,
            decode_transfer,
        ),
        (
            AccountOpened("2378", None),
            b'{"type":"account_opened","account":"2378","overdraft_minor":null}',
            encode_transfer,
            decode_transfer,
        ),
        (
            AccountClosed("2378"),
            b'{"type":"account_closed","account":"2378"}',
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Posting(
                "171812",
                "debit",
                "2378",
                "cash@3",
                (Entry("2378", "CZK", -70350), Entry("in-transit@3", "CZK", 70000), Entry("fees@3", "CZK", 350)),
                "1993-01-01",
                fee_minor=350,
            ),
            (
                b'{"type":"posting","payment_id":"171812","leg":"debit","debtor":"2378","creditor":"cash@3",'
                b'"entries":[["2378","CZK",-70350],["in-transit@3","CZK",70000],["fees@3","CZK",350]],'
                b'"value_date":"1993-01-01","fee_minor":350}'
            ),
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Decline("171812", "2378", DeclineReason.NO_RATE, "1993-01-01"),
            b'{"type":"decline","payment_id":"171812","debtor":"2378","reason":"no_rate","value_date":"1993-01-01"}',
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Account({"CZK": -70350}, None, closed=True),
            b'{"balances":{"CZK":-70350},"overdraft_minor":null,"closed":true}',
            encode_account,
            decode_account,
        ),
        (Account(), b"{}", encode_account, decode_account),
        (
            Transfer("p", "a", "b", 1, "CZK", 1, "CZK", "1993-01-01", priced_by=PricedBy("3:17", None)),
            (
                b'{"type":"transfer","payment_id":"p","debtor":"a","creditor":"b","amount_minor":1,"currency":"CZK",'
                b'"credit_minor":1,"credit_currency":"CZK","value_date":"1993-01-01","priced_by":["3:17",null]}'
            ),
            encode_transfer,
            decode_transfer,
        ),
        (
            Posting(
                "p",
                "credit",
                "a",
                "b",
                (Entry("in-transit@1", "CZK", -1), Entry("b", "CZK", 1)),
                "1993-01-01",
                notified_by=NotifiedBy("1:0", "0:4", OF_INSTALLATION),
            ),
            (
                b'{"type":"posting","payment_id":"p","leg":"credit","debtor":"a","creditor":"b",'
                b'"entries":[["in-transit@1","CZK",-1],["b","CZK",1]],"value_date":"1993-01-01",'
                b'"notified_by":["1:0","0:4","2"]}'
            ),
            encode_ledger_event,
            decode_ledger_event,
        ),
        (
            Decline("p", "a", DeclineReason.NO_RATE, "1993-01-01", notified_by=NotifiedBy(None, None, OF_INSTALLATION)),
            (
                b'{"type":"decline","payment_id":"p","debtor":"a","reason":"no_rate","value_date":"1993-01-01",'
                b'"notified_by":[null,null,"2"]}'
            ),
            encode_ledger_event,
            decode_ledger_event,
        ),
    ],
)
def test_golden_bytes(
    event: object, value: bytes, encode: Callable[[object], bytes], decode: Callable[[bytes], object]
) -> None:
    assert encode(event) == value
    assert decode(value) == event


@pytest.mark.parametrize(
    ("value", "event"),
    [
        (
            (
                b'{"type":"posting","payment_id":"p","leg":"credit","debtor":"a","creditor":"b",'
                b'"entries":[["in-transit@1","CZK",-1],["b","CZK",1]],"value_date":"1993-01-01",'
                b'"notified_by":["1:0","0:4"]}'
            ),
            Posting(
                "p",
                "credit",
                "a",
                "b",
                (Entry("in-transit@1", "CZK", -1), Entry("b", "CZK", 1)),
                "1993-01-01",
                notified_by=NotifiedBy("1:0", "0:4", OF_ORIGIN),
            ),
        ),
        (
            (
                b'{"type":"decline","payment_id":"p","debtor":"a","reason":"no_rate","value_date":"1993-01-01",'
                b'"notified_by":[null,null]}'
            ),
            Decline("p", "a", DeclineReason.NO_RATE, "1993-01-01", notified_by=NotifiedBy(None, None, OF_ORIGIN)),
        ),
    ],
)
def test_golden_bytes_of_former_versions(value: bytes, event: object) -> None:
    """Read, and not written any more."""
    assert decode_ledger_event(value) == event


def test_golden_bytes_of_an_installation() -> None:
    value = b'{"id":"3f2a9c0de1b84c7d8a6655f0c4e21b97","made_at_ms":1700000000000}'
    installation = Installation("3f2a9c0de1b84c7d8a6655f0c4e21b97", 1_700_000_000_000)
    assert encode_installation(installation) == value
    assert decode_installation(value) == installation
    assert decode_installation(value[:-1] + b',"made_by":"once up"}') == installation


def test_golden_bytes_of_an_accepted_opening() -> None:
    value = (
        b'{"type":"account_opening","payment_id":"o-1","debtor":"2378","overdraft_minor":500,"expected_version":3,'
        b'"owner":"alpha","schema_version":2,"received_at_ms":7,"submitted_by":["alpha","0123456789abcdef",false]}'
    )
    assert encode_accepted(OPENING, 7, BY_ALPHA) == value
    accepted = AcceptedOpening("o-1", "2378", 500, 3, "alpha", 2, received_at_ms=7, submitted_by=BY_ALPHA)
    assert decode_accepted(value) == (accepted, {})


def test_golden_bytes_of_a_repeat() -> None:
    value = b'{"payment_id":"171812","debtor":"2378","first":"payments.raw:3:7"}'
    assert encode_repeat(Repeat("171812", "2378", "payments.raw:3:7")) == value


def test_golden_digest_of_an_identity() -> None:
    digest = identity_digest("2378", "171812")
    assert digest == blake2b(b"4:23786:171812", digest_size=16).digest()
    assert digest.hex() == "45d953aa1847a0e614f0f52b2d6eee51"


def test_the_boundary_between_debtor_and_payment_id_counts() -> None:
    assert identity_digest("23", "78") != identity_digest("237", "8")
    assert identity_digest("a1:b", "c") != identity_digest("a", "b1:c")


def test_golden_digests_of_content() -> None:
    assert content_digest(PAYMENT).hex() == "3f4fc0adb3eaf82bf006b91b6408ae46"
    assert content_digest(REVERSAL).hex() == "fbcc6de27914ebaee1aac0c0109e019e"
    assert content_digest(OPENING).hex() == "8196228806f44177ec899ebf07a67e72"


@pytest.mark.parametrize(
    "changes", [{"overdraft_minor": None}, {"overdraft_minor": 0}, {"expected_version": None}, {"owner": None}]
)
def test_the_content_of_an_opening_is_its_terms(changes: dict[str, object]) -> None:
    assert content_digest(msgspec.structs.replace(OPENING, **changes)) != content_digest(OPENING)
    assert content_digest(msgspec.structs.replace(OPENING, payment_id="o-2")) == content_digest(OPENING)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"payment_id": "another", "debtor": "another"}, True),
        ({"credit_currency": "CZK"}, True),
        ({"credit_currency": "EUR"}, False),
        ({"creditor": "cash@4"}, False),
        ({"amount_minor": 70001}, False),
        ({"currency": "EUR"}, False),
        ({"value_date": None}, False),
        ({"reference": ""}, False),
    ],
)
def test_content_is_exactly_the_business_fields(changes: dict[str, object], same: bool) -> None:
    changed = msgspec.structs.replace(PAYMENT, **changes)
    assert (content_digest(changed) == content_digest(PAYMENT)) is same


def test_a_large_balance_round_trips() -> None:
    account = Account({"CZK": 2**70, "EUR": -(2**70)})
    assert decode_account(encode_account(account)) == account


def test_reference_data_is_read() -> None:
    assert decode_fee(b'{"fixed_minor":10,"basis_points":5}') == Fee(10, 5)
    assert decode_rate(b'{"rate":"1.0850"}') == Rate("1.0850")
    assert decode_expected_balance(
        b'{"currency":"CZK","opening_minor":0,"closing_minor":1,"file":"a.csv"}'
    ) == ExpectedBalance("CZK", 0, 1, "a.csv")


@pytest.mark.parametrize("value", [b'{"fixed_minor":-1}', b'{"basis_points":0.5}', b'{"fixed":1}'])
def test_bad_fees_are_refused(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_fee(value)


@pytest.mark.parametrize("rate", ["-1", "1e3", "1.", ".5", "01", "1.0\n", "", "1.1234567890123", "1" * 13])
def test_bad_rates_are_refused(rate: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_rate(msgspec.json.encode({"rate": rate}))


def test_coordinates_round_trip_as_a_header() -> None:
    coordinates = Coordinates("payments.raw", 3, 1207)
    assert coordinates.encode() == b"payments.raw:3:1207"
    assert str(coordinates) == "payments.raw:3:1207"
    assert Coordinates.decode(coordinates.encode()) == coordinates


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"payments.raw:3", "not enough values"),
        (b"a:1:2:3", "too many values"),
        (b"payments.raw:x:1", "invalid literal"),
        (b"\xff:1:2", "can't decode"),
    ],
)
def test_invalid_coordinates_are_refused(value: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Coordinates.decode(value)


def test_the_first_header_of_a_name_counts() -> None:
    headers = (("source", b"1"), ("origin", b"2"), ("origin", b"3"))
    assert header(headers, "origin") == b"2"
    assert header(headers, "reason") is None


@pytest.mark.parametrize("value", [b'{"unknown":' + b"[" * 5000, b'{"\xff', b"", b"[" * 5000])
@pytest.mark.parametrize(
    "decode", [decode_instruction, decode_transfer, decode_ledger_event, decode_account, decode_fee]
)
def test_an_invalid_event_raises_a_decode_error(decode: Callable[[bytes], object], value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(value)


def test_a_field_name_that_is_not_utf8_raises_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="not UTF-8"):
        decode_fee(b'{"\xff":1}')
