"""The validator on any input: one kind of error, the same decision on both paths, one partition."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.events import validation
from shared.events.dead_letters import Reason
from shared.events.identity import content_digest, identity_digest
from shared.events.payments import Instruction, Payment, encode_instruction
from shared.events.validation import InvalidPaymentError, decode_payment, key_of
from tests import instructions as strategies
from tests.instructions import accounts, json_values, openings, payment_ids, payments
from tests.partitions import PARTITIONS, partition_for
from tests.payments import decode_instruction

instructions = strategies.instructions | openings

FIELDS = [
    "schema_version",
    "type",
    "payment_id",
    "debtor",
    "creditor",
    "amount_minor",
    "currency",
    "credit_currency",
    "value_date",
    "reference",
    "reverses",
    "account_from",
    "account_to",
    "occurred_at",
    "memo",
    "overdraft_minor",
    "expected_version",
    "owner",
    "other",
]


def decided(value: bytes) -> Instruction | Reason:
    try:
        return decode_payment(value, PARTITIONS)
    except InvalidPaymentError as error:
        refusal = error
    assert refusal.detail.isascii()
    assert len(refusal.detail) < 400
    return refusal.reason


def exactly(value: bytes) -> Instruction | Reason:
    """The decision by the exact path alone."""
    try:
        return validation._decode_exactly(value, PARTITIONS)
    except InvalidPaymentError as refusal:
        return refusal.reason


def damaged(value: bytes, position: int, replacement: bytes, length: int) -> bytes:
    start = position % (len(value) + 1)
    return value[:start] + replacement + value[start + length :]


@given(st.binary() | json_values.map(msgspec.json.encode))
def test_any_bytes_are_decided(value: bytes) -> None:
    decided(value)
    key_of(value, PARTITIONS)


@given(instructions, st.integers(0), st.binary(max_size=3), st.integers(0, 20))
def test_damaged_payments_are_decided_alike_on_both_paths(
    instruction: Instruction, position: int, replacement: bytes, length: int
) -> None:
    value = damaged(encode_instruction(instruction), position, replacement, length)
    assert decided(value) == exactly(value)


@given(
    instructions,
    st.sampled_from(FIELDS),
    json_values | accounts | st.sampled_from([1, 2, "payment", "reversal", "account_opening"]),
)
def test_a_strange_field_is_decided_alike_on_both_paths(instruction: Instruction, name: str, strange: object) -> None:
    fields = msgspec.json.decode(encode_instruction(instruction)) | {name: strange}
    value = msgspec.json.encode(fields)
    assert decided(value) == exactly(value)


@given(instructions)
def test_a_valid_instruction_is_unchanged_and_survives_its_codec(instruction: Instruction) -> None:
    value = encode_instruction(instruction)
    assert decode_payment(value, PARTITIONS) == instruction
    assert decode_instruction(value) == instruction


@given(instructions)
def test_the_key_of_a_valid_payment_is_its_debtor(instruction: Instruction) -> None:
    key = (instruction.debtor.encode(), partition_for(instruction.debtor))
    assert key_of(encode_instruction(instruction), PARTITIONS) == key


@given(payments)
def test_a_payment_of_version_1_is_the_same_payment(payment: Payment) -> None:
    current = msgspec.structs.replace(payment, credit_currency=None)
    old: dict[str, object] = {
        "schema_version": 1,
        "payment_id": payment.payment_id,
        "account_from": payment.debtor,
        "account_to": payment.creditor,
        "amount_minor": payment.amount_minor,
        "currency": payment.currency,
        "memo": payment.reference,
    }
    if payment.value_date is not None:
        old["occurred_at"] = f"{payment.value_date}T23:59:59Z"
    value = msgspec.json.encode(old)
    assert decode_payment(value, PARTITIONS) == current
    assert content_digest(decode_payment(value, PARTITIONS)) == content_digest(current)
    assert key_of(value, PARTITIONS)[0] == payment.debtor.encode()


@given(payments, payments)
def test_digests_are_equal_exactly_when_their_content_is(one: Payment, other: Payment) -> None:
    def content(payment: Payment) -> tuple[object, ...]:
        credit_currency = payment.credit_currency or payment.currency
        money = (payment.amount_minor, payment.currency, credit_currency)
        return (*money, payment.creditor, payment.value_date, payment.reference)

    assert (content_digest(one) == content_digest(other)) == (content(one) == content(other))


@given(accounts, payment_ids, accounts, payment_ids)
def test_identities_are_distinct(debtor: str, payment_id: str, other: str, other_id: str) -> None:
    same = (debtor, payment_id) == (other, other_id)
    assert (identity_digest(debtor, payment_id) == identity_digest(other, other_id)) == same


@pytest.mark.parametrize("depth", [10, 1_000, 100_000])
@pytest.mark.parametrize("opening", [b"[", b'{"debtor":', b'{"memo":['])
def test_any_depth_is_decided(opening: bytes, depth: int) -> None:
    assert decided(opening * depth) is Reason.NOT_JSON
    assert key_of(opening * depth, PARTITIONS)[0] is None
