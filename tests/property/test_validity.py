"""The verifier's rules for a payment agree with the services', and any reason that they give is one of the verifier's.

Both were written from the same description; neither imports the other.
"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.checkers.validity import judge
from shared.events.dead_letters import Reason
from shared.events.validation import InvalidPaymentError, decode_payment
from tests.partitions import PARTITIONS

TEXTS = st.sampled_from(["p-1", "", "a" * 129, "p\n", "2378", "cash@3", "cash@99", "cash@03", "suspense@1", "a b", "é"])
ODD: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 0, -1, 1.5, 2**53, 2**53 - 1, 2**70, [], {}, "EUR", "XYZ", "2026-02-30", "2026-01-05"]
)
VALUES = (
    TEXTS | ODD | st.sampled_from(["1993-01-01T12:00:00Z", "1993-01-01", "1993-01-01 25:00", "payment", "reversal"])
)
BASES = [
    {
        "schema_version": 2,
        "payment_id": "p-1",
        "debtor": "2378",
        "creditor": "cash@3",
        "amount_minor": 5,
        "currency": "CZK",
    },
    {
        "schema_version": 1,
        "payment_id": "p-1",
        "account_from": "2378",
        "account_to": "cash@3",
        "amount_minor": 5,
        "currency": "CZK",
        "occurred_at": "1993-01-01T12:00:00Z",
        "memo": "rent",
    },
    {"schema_version": 2, "type": "reversal", "payment_id": "r-1", "debtor": "2378", "reverses": "p-1"},
]
NAMES = sorted({name for base in BASES for name in base} | {"credit_currency", "value_date", "reference", "unknown"})
RECORDS = st.builds(
    lambda base, changes, gone: json.dumps(
        {name: value for name, value in {**base, **changes}.items() if name not in gone}
    ).encode(),
    st.sampled_from(BASES),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    st.sets(st.sampled_from(NAMES), max_size=1),
)


def agrees(value: bytes | None) -> None:
    judged = judge(value, PARTITIONS)
    refused: set[Reason] = set()
    instruction = None
    try:
        instruction = decode_payment(value, PARTITIONS)
    except InvalidPaymentError as refusal:
        refused = {refusal.reason}
    assert refused <= judged.faults, value
    assert bool(refused) == bool(judged.faults), value
    assert judged.instruction == instruction, value


@given(RECORDS)
@settings(max_examples=500, deadline=None)
def test_the_rules_agree_on_records_with_a_few_faults(value: bytes) -> None:
    agrees(value)


@given(st.none() | st.binary(max_size=60) | st.sampled_from([b"[]", b'"x"', b'{"\xff":1}', b"[" * 5000, b"", b"{} {}"]))
@settings(deadline=None)
def test_the_rules_agree_on_any_bytes(value: bytes | None) -> None:
    agrees(value)


def test_all_faults_of_a_record_are_named() -> None:
    value = {**BASES[0], "amount_minor": 0, "currency": "XYZ", "creditor": "2378", "unknown": 1}
    faults = judge(json.dumps(value).encode(), PARTITIONS).faults
    assert faults == {"amount_not_positive", "currency_unknown", "same_account", "field_unknown"}
