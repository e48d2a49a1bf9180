"""Decoding per topic: raw records of any version, repeats, dead letters and the two changelogs."""

from decimal import Decimal

import msgspec
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.clients import decode_submitted_by, encode_submitted_by
from shared.events.effects import (
    Subscription,
    Subscriptions,
    Waiting,
    encode_request,
    encode_subscriptions,
    encode_waiting,
)
from shared.events.installation import (
    OWNERSHIP_KEY,
    Installation,
    Ownership,
    encode_installation,
    encode_ownership,
)
from shared.events.payments import VERSIONS, Repeat, encode_repeat, upcast
from shared.events.postings import Account, AccountTerms, encode_account, encode_terms
from shared.events.reference import Fee, Rate, encode_reference
from shared.events.validation import decode_payment
from spark.schemas import TABLES, UNDECODABLE
from tests.partitions import PARTITIONS
from tests.pipeline.records import NOT_POSTINGS, REQUEST, Sent, expected, fields, tables, values


def test_repeats_have_the_coordinates_of_the_first(spark: SparkSession) -> None:
    good = encode_repeat(Repeat("p1", "a", "payments.raw:3:1207"))
    bad = [encode_repeat(Repeat("p1", "a", first)) for first in ("", "payments.raw:3", "payments.raw:x:1")]
    repaired: Sent = (b"key", good, (("repair", b"repair-1:0"),))
    found = tables(spark, catalogue.PAYMENTS_DEDUPLICATED, [*values(good, *bad), repaired])
    assert fields(found["repeats"][0], "repeats") == {
        "payment_id": "p1",
        "debtor": "a",
        "first": "payments.raw:3:1207",
        "first_partition": 3,
        "first_offset": 1207,
        "repair": None,
    }
    assert found["repeats"][1]["repair"] == "repair-1:0"
    assert [bytes(row["value"]) for row in found[UNDECODABLE]] == bad


OLD = {
    "schema_version": 1,
    "payment_id": "p1",
    "account_from": "a",
    "account_to": "b",
    "amount_minor": 5,
    "currency": "CZK",
}
CURRENT = {**OLD, "schema_version": 2, "debtor": "a", "creditor": "b"}
del CURRENT["account_from"], CURRENT["account_to"]
OPENING = {"schema_version": 2, "type": "account_opening", "payment_id": "o1", "debtor": "a"}
VALID: tuple[dict[str, object], ...] = (
    OLD,
    {**OLD, "occurred_at": "1993-01-01T12:00:00Z", "memo": "rent"},
    {**OLD, "occurred_at": None},
    CURRENT,
    {**CURRENT, "type": "payment", "credit_currency": "EUR", "value_date": "2026-01-05", "reference": "rent"},
    {**CURRENT, "credit_currency": None, "value_date": None},
    {"schema_version": 2, "type": "reversal", "payment_id": "r1", "debtor": "a", "reverses": "p1"},
    {"schema_version": 2, "type": "account_opening", "payment_id": "o1", "debtor": "a"},
    {**OPENING, "overdraft_minor": 500, "expected_version": 0, "owner": "acme"},
    {**OPENING, "overdraft_minor": None},
)


def test_a_raw_payment_of_any_version_has_the_fields_of_the_current_one(spark: SparkSession) -> None:
    assert {sent["schema_version"] for sent in VALID} == set(VERSIONS)
    sent = [msgspec.json.encode(payment) for payment in VALID]
    rows = tables(spark, catalogue.PAYMENTS_RAW, values(*sent))["payments_raw"]
    blank = {**dict.fromkeys(fields(rows[0], "payments_raw")), "reference": ""}
    for payment, value, row in zip(VALID, sent, rows, strict=True):
        decoded = decode_payment(value, PARTITIONS)
        kind = decoded.__struct_config__.tag
        assert fields(row, "payments_raw") == {
            **blank,
            **expected(decoded),
            "type": kind,
            "value": value,
        }
        upcasted = upcast(payment, int(str(payment["schema_version"])))
        assert {name: row[name] for name in upcasted} == dict(upcasted)


def test_a_raw_record_has_the_client_of_a_whole_header(spark: SparkSession) -> None:
    headers = (
        b"operator::house",
        b"acme:0123456789abcdef",
        b"a" * 64 + b":",
        b"acme",
        b"acme:0123",
        b"acme:0123456789abcdef:house:house",
        b"acme:0123456789abcdef\n",
        b"\xff:",
        b"a" * 65 + b":",
        b"",
    )
    sent: list[Sent] = [(None, b"{}", (("other", b"x"), ("submitted-by", one))) for one in headers]
    rows = tables(spark, catalogue.PAYMENTS_RAW, [*sent, (None, b"{}", None)])["payments_raw"]
    named = [decode_submitted_by(one) for one in (*headers, None)]
    assert [row["submitted_by"] for row in rows] == [by and encode_submitted_by(by).decode() for by in named]
    assert len([by for by in named if by is not None]) == len(headers[:3])


def test_accounts_and_their_terms_are_read_from_their_topic(spark: SparkSession) -> None:
    sent: list[Sent] = [
        (b"a", encode_terms(AccountTerms("acme", 2)), ()),
        (b"b", encode_terms(AccountTerms("operator", 1, None, closed=True)), ()),
        (b"c", b"{}", ()),
    ]
    found = tables(spark, catalogue.LEDGER_ACCOUNTS, sent)
    names = ("account", "owner", "version", "overdraft_minor", "closed", "deleted")
    assert [tuple(row[name] for name in names) for row in found["account_terms"]] == [
        ("a", "acme", 2, 0, False, False),
        ("b", "operator", 1, None, True, False),
    ]
    assert [row["offset"] for row in found[UNDECODABLE]] == [2]


def test_the_offsets_of_ownership_are_read_and_other_records_of_the_installation_are_not(spark: SparkSession) -> None:
    sent: list[Sent] = [
        (b"0" * 32, encode_installation(Installation("0" * 32, 1)), ()),
        (OWNERSHIP_KEY, encode_ownership(Ownership((0, 17), 5)), ()),
    ]
    found = tables(spark, catalogue.INSTALLATION, sent)
    assert [fields(row, "ownership") for row in found.pop("ownership")] == [
        {"raw_from": [0, 17], "made_at_ms": 5, "deleted": False}
    ]
    assert not found


def test_a_raw_record_may_be_any_bytes(spark: SparkSession) -> None:
    valid = msgspec.json.encode(CURRENT)
    sent = (
        *NOT_POSTINGS,
        valid.replace(b'"schema_version":2', b'"schema_version":3'),
        valid.replace(b'"schema_version":2', b'"schema_version":"2"'),
        valid.replace(b'"amount_minor":5', b'"amount_minor":5.5'),
        valid + b"x",
    )
    found = tables(spark, catalogue.PAYMENTS_RAW, values(*sent))
    assert set(found) == {"payments_raw"}
    assert [row["value"] and bytes(row["value"]) for row in found["payments_raw"]] == list(sent)
    names = [field.name for field in TABLES["payments_raw"].columns if field.name != "value"]
    assert {row[name] for row in found["payments_raw"] for name in names} == {None}


def test_dead_letters_keep_their_bytes_and_their_reason(spark: SparkSession) -> None:
    why = (("reason", b"not_json"), ("detail", b"send \xff JSON"), ("service", b"ingest"), ("submitted-by", b"acme:"))
    unknown = (("submitted-by", b"acme"),)
    sent = [(None, b"\xff{", why), (b"a", None, None), (b"a", None, unknown)]
    found = tables(spark, catalogue.PAYMENTS_DEAD_LETTER, sent)
    blank = dict.fromkeys(("value", "reason", "detail", "service", "submitted_by", "repair"))
    assert [fields(row, "dead_letters") for row in found.pop("dead_letters")] == [
        {
            "value": b"\xff{",
            "reason": "not_json",
            "detail": "send \ufffd JSON",
            "service": "ingest",
            "submitted_by": "acme:",
            "repair": None,
        },
        blank,
        blank,
    ]
    assert not found


def test_an_effects_dead_letter_names_its_effect(spark: SparkSession) -> None:
    value = encode_request(REQUEST)
    sent: list[Sent] = [(b"a", value, (("reason", b"refused"), ("detail", b"no"))), (b"a", b"\xff", ())]
    found = tables(spark, catalogue.EFFECTS_DEAD_LETTER, sent)
    assert [fields(row, "effect_dead_letters") for row in found.pop("effect_dead_letters")] == [
        {"effect_id": "e1", "value": value, "reason": "refused", "detail": "no"},
        {"effect_id": None, "value": b"\xff", "reason": None, "detail": None},
    ]
    assert not found


UNOWNED = {"owner": "operator", "version": 0}


def test_account_states_are_read_from_their_keys_of_the_changelog(spark: SparkSession) -> None:
    large = {"CZK": -(10**30), "EUR": 2**63}
    found = tables(
        spark,
        catalogue.LEDGER_BALANCES,
        [
            (b"account/a", encode_account(Account()), ()),
            (b"account/b/c", encode_account(Account(large, None, closed=True, owner="acme", version=3)), ()),
            (b"account/fees@3", encode_account(Account({"CZK": 5}, 700)), ()),
            (b"account/a", None, ()),
            (b"account/a", b"{", ()),
            (b"account/a", b'{"overdraft_minor":"5x"}', ()),
            (b"payment/17", b"\x93\x01", ()),
            (b"next_offset", b'{"next_offset":5}', ()),
            (b"next_offset", b"{", ()),
            (None, None, ()),
        ],
    )
    assert [fields(row, "account_states") for row in found["account_states"]] == [
        {"account": "a", "balances": {}, "overdraft_minor": 0, "closed": False, **UNOWNED, "deleted": False},
        {
            "account": "b/c",
            "balances": {name: Decimal(amount) for name, amount in large.items()},
            "overdraft_minor": None,
            "closed": True,
            "owner": "acme",
            "version": 3,
            "deleted": False,
        },
        {
            "account": "fees@3",
            "balances": {"CZK": Decimal(5)},
            "overdraft_minor": 700,
            "closed": False,
            **UNOWNED,
            "deleted": False,
        },
        {"account": "a", **dict.fromkeys(("balances", "overdraft_minor", "closed", *UNOWNED)), "deleted": True},
    ]
    assert [row["offset"] for row in found[UNDECODABLE]] == [4, 5]


def test_waiting_effects_are_read_from_their_keys_of_the_changelog(spark: SparkSession) -> None:
    waiting = Waiting(REQUEST, "effects.requests:0:0", "payments.raw:0:0", 3, 100, 200, 1)
    late = msgspec.structs.replace(waiting, detail="refused", doubtful=True)
    found = tables(
        spark,
        catalogue.EFFECTS_WAITING,
        [
            (b"waiting/e1", encode_waiting(waiting), ()),
            (b"waiting/e2", encode_waiting(late), ()),
            (b"waiting/e1", None, ()),
            (b"waiting/e3", b"[]", ()),
            (b"trust/redis", b'{"incarnation":"1"}', ()),
        ],
    )
    blank = {"attempts": None, "first_ms": None, "not_before_ms": None, "detail": None}
    assert [fields(row, "effects_waiting") for row in found["effects_waiting"]] == [
        {"effect_id": "e1", "attempts": 3, "first_ms": 100, "not_before_ms": 200, "detail": "", "deleted": False},
        {
            "effect_id": "e2",
            "attempts": 3,
            "first_ms": 100,
            "not_before_ms": 200,
            "detail": "refused",
            "deleted": False,
        },
        {"effect_id": "e1", **blank, "deleted": True},
    ]
    assert [row["offset"] for row in found[UNDECODABLE]] == [3]


def test_reference_records_have_their_key_and_say_whether_they_delete_it(spark: SparkSession) -> None:
    found = tables(
        spark,
        catalogue.REFERENCE_FEES,
        [
            (b"CZK", encode_reference(Fee(30, 20, 1, 500)), ()),
            (b"EUR", b"{}", ()),
            (b"CZK", None, ()),
            (b"CZK", b"[]", ()),
        ],
    )
    names = ("currency", "fixed_minor", "basis_points", "min_minor", "max_minor", "deleted")
    assert [tuple(row[name] for name in names) for row in found["reference_fees"]] == [
        ("CZK", 30, 20, 1, 500, False),
        ("EUR", 0, 0, 0, None, False),
        ("CZK", None, None, None, None, True),
    ]
    assert [row["offset"] for row in found[UNDECODABLE]] == [3]
    found = tables(spark, catalogue.REFERENCE_RATES, [(b"CZK/EUR", encode_reference(Rate("0.04")), ())])
    assert fields(found["reference_rates"][0], "reference_rates") == {
        "pair": "CZK/EUR",
        "rate": "0.04",
        "deleted": False,
    }
    value = encode_subscriptions(Subscriptions((Subscription("receipt", "file:a"), Subscription("event", "b", True))))
    found = tables(spark, catalogue.REFERENCE_SUBSCRIPTIONS, [(b"*", value, ()), (b"a", None, ())])
    assert [fields(row, "reference_subscriptions") for row in found["reference_subscriptions"]] == [
        {
            "account": "*",
            "subscriptions": [
                {"kind": "receipt", "destination": "file:a", "ordered": None},
                {"kind": "event", "destination": "b", "ordered": True},
            ],
            "deleted": False,
        },
        {"account": "a", "subscriptions": None, "deleted": True},
    ]
