"""ingest: one output for each raw record, on its own partition, its bytes or its coordinates kept."""

from typing import Any

import msgspec
import pytest

from services.ingest.service import IngestHandler
from shared.eos.records import Output, Record
from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER, PAYMENTS_DEDUPLICATED, PAYMENTS_RAW
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.headers import SUBMITTED_BY, header
from shared.events.payments import AcceptedOpening, AcceptedPayment, AcceptedReversal, Repeat, decode_accepted
from tests.partitions import PARTITIONS, partition_for

DEBTOR = "2378"
PARTITION = partition_for(DEBTOR)
TIME_MS = 1_767_571_200_123
PAYMENT: dict[str, Any] = {
    "schema_version": 2,
    "payment_id": "171812",
    "debtor": DEBTOR,
    "creditor": "cash@3",
    "amount_minor": 70000,
    "currency": "CZK",
}
REVERSAL = {
    "schema_version": 2,
    "type": "reversal",
    "payment_id": "171812",
    "debtor": DEBTOR,
    "reverses": "171811",
}
OPENING = {
    "schema_version": 2,
    "type": "account_opening",
    "payment_id": "o-1",
    "debtor": DEBTOR,
    "overdraft_minor": 500,
}


def raw(offset: int, value: bytes | None, key: bytes | None = b"key") -> Record:
    return Record(PAYMENTS_RAW, PARTITION, offset, TIME_MS, key, value, (("resubmission-of", b"x"),))


def payment(**changes: object) -> bytes:
    return msgspec.json.encode(PAYMENT | changes)


def process(handler: IngestHandler, offset: int, value: bytes | None, key: bytes | None = b"key") -> Output:
    [output] = handler.process(raw(offset, value, key))
    handler.store.commit()
    assert output.partition == PARTITION
    coordinates = b"payments.raw:%d:%d" % (PARTITION, offset)
    assert header(output.headers, "origin") == header(output.headers, "source") == coordinates
    return output


def reason(output: Output) -> bytes | None:
    assert output.topic == PAYMENTS_DEAD_LETTER
    assert header(output.headers, "service") == b"ingest"
    assert header(output.headers, "detail")
    return header(output.headers, "reason")


@pytest.fixture
def handler() -> IngestHandler:
    return IngestHandler(PARTITION, 3, partitions=PARTITIONS)


def test_a_new_payment_is_accepted_in_the_current_version(handler: IngestHandler) -> None:
    output = process(handler, 7, payment())
    assert (output.topic, output.key) == (PAYMENTS_ACCEPTED, DEBTOR.encode())
    assert output.value is not None
    assert decode_accepted(output.value) == (
        AcceptedPayment("171812", DEBTOR, "cash@3", 70000, "CZK", 2, received_at_ms=TIME_MS),
        {},
    )


def test_the_offset_alone_decides_which_records_carry_their_origin_time(handler: IngestHandler) -> None:
    """Otherwise, an aborted batch that is read again would get other headers."""
    timed = [
        offset
        for offset in (7, 8, 9, 16, 24, 8)
        if header(process(handler, offset, payment(payment_id=str(offset))).headers, "origin-time")
    ]
    assert timed == [8, 16, 24, 8]


def test_a_reversal_is_accepted(handler: IngestHandler) -> None:
    output = process(handler, 7, msgspec.json.encode(REVERSAL))
    assert output.value is not None
    assert decode_accepted(output.value) == (
        AcceptedReversal("171812", DEBTOR, "171811", 2, received_at_ms=TIME_MS),
        {},
    )


def test_an_opening_is_accepted_once(handler: IngestHandler) -> None:
    opening = msgspec.json.encode(OPENING)
    output = process(handler, 7, opening)
    assert output.value is not None
    assert decode_accepted(output.value) == (AcceptedOpening("o-1", DEBTOR, 500, None, None, 2, TIME_MS), {})
    assert process(handler, 8, opening).topic == PAYMENTS_DEDUPLICATED
    assert reason(process(handler, 9, msgspec.json.encode(OPENING | {"overdraft_minor": 1}))) == b"identity_conflict"
    assert reason(process(handler, 10, payment(payment_id="o-1"))) == b"identity_conflict"


@pytest.mark.parametrize("value", [payment(), msgspec.json.encode(REVERSAL), msgspec.json.encode(OPENING)])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ((b"alpha:0123456789abcdef",), SubmittedBy("alpha", "0123456789abcdef")),
        ((b"alpha:0123456789abcdef:house",), SubmittedBy("alpha", "0123456789abcdef", house=True)),
        ((b"operator::house",), OPERATOR),
        ((b"alpha:0123456789abcdef", b"operator::house"), SubmittedBy("alpha", "0123456789abcdef")),
        ((), None),
        ((b"",), None),
        ((b"alpha",), None),
        ((b":0123456789abcdef",), None),
        ((b"alpha:0123456789ABCDEF",), None),
        ((b"alpha:0123456789abcde",), None),
        ((b"alpha:0123456789abcdef:",), None),
        ((b"alpha:0123456789abcdef:root",), None),
        ((b"alpha:0123456789abcdef\n",), None),
        ((b"\xff\xfe:0123456789abcdef",), None),
        (("é:0123456789abcdef".encode(),), None),
        ((b"a" * 65 + b":0123456789abcdef",), None),
        ((b"a" * 1_000_000,), None),
        ((b"malformed", b"operator::house"), None),
    ],
)
def test_who_submitted_it_is_in_the_first_header(
    handler: IngestHandler, value: bytes, headers: tuple[bytes, ...], expected: SubmittedBy | None
) -> None:
    record = raw(7, value)._replace(headers=tuple((SUBMITTED_BY, one) for one in headers))
    [output] = handler.process(record)
    assert output.value is not None
    accepted, _ = decode_accepted(output.value)
    assert accepted.submitted_by == expected


@pytest.mark.parametrize(
    "again",
    [
        payment(),
        payment(type="payment", reference="", credit_currency="CZK"),
        msgspec.json.encode(dict(reversed(PAYMENT.items()))),
        msgspec.json.encode(
            {
                "schema_version": 1,
                "payment_id": "171812",
                "account_from": DEBTOR,
                "account_to": "cash@3",
                "amount_minor": 70000,
                "currency": "CZK",
            }
        ),
    ],
)
def test_the_same_payment_in_any_notation_is_a_repeat(handler: IngestHandler, again: bytes) -> None:
    process(handler, 7, payment())
    output = process(handler, 9, again)
    assert (output.topic, output.key) == (PAYMENTS_DEDUPLICATED, DEBTOR.encode())
    assert output.value is not None
    repeat = msgspec.json.decode(output.value, type=Repeat)
    assert repeat == Repeat("171812", DEBTOR, f"payments.raw:{PARTITION}:7")


@pytest.mark.parametrize(
    "other", [payment(amount_minor=70001), payment(value_date="1993-01-01"), msgspec.json.encode(REVERSAL)]
)
def test_other_content_under_a_known_identity_is_a_conflict(handler: IngestHandler, other: bytes) -> None:
    process(handler, 7, payment())
    output = process(handler, 8, other)
    assert reason(output) == b"identity_conflict"
    assert f"payments.raw:{PARTITION}:7".encode() in (header(output.headers, "detail") or b"")
    assert output.value == other
    assert process(handler, 9, payment()).topic == PAYMENTS_DEDUPLICATED


def test_another_payment_id_is_another_payment(handler: IngestHandler) -> None:
    process(handler, 7, payment())
    assert process(handler, 8, payment(payment_id="171813")).topic == PAYMENTS_ACCEPTED


def test_a_bad_record_keeps_its_bytes_and_key_and_is_not_remembered(handler: IngestHandler) -> None:
    output = process(handler, 7, payment(amount_minor=0))
    assert reason(output) == b"amount_not_positive"
    assert (output.key, output.value) == (b"key", payment(amount_minor=0))
    assert process(handler, 8, payment()).topic == PAYMENTS_ACCEPTED


@pytest.mark.parametrize(
    ("value", "kept"), [(b"alpha:0123456789abcdef", b"alpha:0123456789abcdef"), (b"a" * 1_000_000, None)]
)
def test_a_dead_letter_says_who_submitted_it(handler: IngestHandler, value: bytes, kept: bytes | None) -> None:
    [output] = handler.process(raw(7, b"no payment")._replace(headers=((SUBMITTED_BY, value),)))
    assert header(output.headers, SUBMITTED_BY) == kept
    [output] = handler.refuse(raw(7, payment())._replace(headers=((SUBMITTED_BY, value),)), "it is too large")
    assert header(output.headers, SUBMITTED_BY) == kept


def test_a_tombstone_is_refused_as_a_tombstone(handler: IngestHandler) -> None:
    output = process(handler, 7, None)
    assert reason(output) == b"not_json"
    assert (output.key, output.value) == (b"key", None)


def test_a_record_without_key_and_value_is_refused_with_an_empty_value(handler: IngestHandler) -> None:
    output = process(handler, 7, None, key=None)
    assert reason(output) == b"not_json"
    assert (output.key, output.value) == (None, b"")
    assert b"written as an empty value" in (header(output.headers, "detail") or b"")


def test_a_payment_on_a_partition_not_its_debtors_is_refused() -> None:
    elsewhere = (PARTITION + 1) % 6
    handler = IngestHandler(elsewhere, 3, partitions=PARTITIONS)
    [output] = handler.process(Record(PAYMENTS_RAW, elsewhere, 7, 0, None, payment(), ()))
    assert output.partition == elsewhere
    assert reason(output) == b"wrong_partition"
    assert list(handler.store.changes()) == []


def test_an_identity_outside_the_window_is_new_again(handler: IngestHandler) -> None:
    for offset in range(4):
        process(handler, offset, payment(payment_id=f"p-{offset}"))
    assert process(handler, 4, payment(payment_id="p-1")).topic == PAYMENTS_DEDUPLICATED
    assert process(handler, 5, payment(payment_id="p-0")).topic == PAYMENTS_ACCEPTED


def test_a_rollback_forgets_what_was_accepted(handler: IngestHandler) -> None:
    handler.process(raw(7, payment()))
    handler.store.rollback()
    assert process(handler, 7, payment()).topic == PAYMENTS_ACCEPTED


def test_a_successor_restores_the_changelog(handler: IngestHandler) -> None:
    handler.process(raw(7, payment()))
    [(key, value)] = handler.store.changes()
    assert key == b"identity/0"
    successor = IngestHandler(PARTITION, 3, partitions=PARTITIONS)
    successor.store.restore(key, value)
    assert process(successor, 8, payment()).topic == PAYMENTS_DEDUPLICATED


def test_a_record_whose_output_was_lost_is_not_a_repeat_of_itself(handler: IngestHandler) -> None:
    process(handler, 5, payment())
    assert process(handler, 5, payment()).topic == PAYMENTS_ACCEPTED
    [repeat] = handler.process(raw(6, payment()))
    assert repeat.topic == PAYMENTS_DEDUPLICATED


@pytest.mark.parametrize("time_ms", [-1, 10**18])
def test_a_time_that_is_none_is_left_out(handler: IngestHandler, time_ms: int) -> None:
    [output] = handler.process(raw(7, payment())._replace(timestamp_ms=time_ms))
    assert output.value is not None
    assert b"received_at_ms" not in output.value
