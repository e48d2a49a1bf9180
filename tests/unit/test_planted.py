"""Records planted into the sample: repeats with the same identity and content, and one bad record of each kind."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from deploy.demo.faults import BAD, PLANTED, REPEATS, interleave
from deploy.drills.bad_records import BAD_RECORDS
from deploy.load.files import Format, records_of
from deploy.load.pkdd99 import value_of
from shared.events.dead_letters import Reason
from shared.events.identity import content_digest, identity_digest
from shared.events.validation import InvalidPaymentError, decode_payment
from tests.partitions import PARTITIONS

SAMPLE = Path(__file__).parents[2] / "deploy" / "sample" / "trans_1993.csv.gz"

REASONS = {
    "not-utf8": Reason.NOT_UTF8,
    "not-json": Reason.NOT_JSON,
    "no-payment-id": Reason.FIELD_MISSING,
    "no-debtor": Reason.FIELD_MISSING,
    "zero": Reason.AMOUNT_NOT_POSITIVE,
    "negative": Reason.AMOUNT_NOT_POSITIVE,
    "float": Reason.AMOUNT_NOT_INTEGER,
    "unknown-currency": Reason.CURRENCY_UNKNOWN,
    "unknown-schema-version": Reason.SCHEMA_VERSION_UNKNOWN,
    "conflict": None,
}


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return [value_of(line, PARTITIONS)[0] for line in records_of(SAMPLE, Format.PKDD99)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ingest_would_find_the_planted_records(lines: list[bytes], seed: int) -> None:
    values = list(interleave(lines, seed))
    assert len(values) == len(lines) + PLANTED == 28_265
    contents: dict[bytes, bytes] = {}
    first: dict[bytes, bytes] = {}
    accepted: list[bytes] = []
    reasons: Counter[Reason | None] = Counter()
    identical = rewritten = 0
    for value in values:
        try:
            payment = decode_payment(value, PARTITIONS)
        except InvalidPaymentError as error:
            reasons[error.reason] += 1
            continue
        identity = identity_digest(payment.debtor, payment.payment_id)
        content = content_digest(payment)
        if contents.setdefault(identity, content) != content:
            reasons[None] += 1
        elif identity not in first:
            first[identity] = value
            accepted.append(value)
        else:
            identical += value == first[identity]
            rewritten += value != first[identity]
    assert accepted == lines
    assert (identical, rewritten) == (REPEATS // 2, REPEATS // 2)
    assert reasons == Counter(REASONS.values())
    assert sum(reasons.values()) == BAD


def test_repeats_are_near_and_far(lines: list[bytes]) -> None:
    values = list(interleave(lines, 7))
    at = {value: index for index, value in reversed(list(enumerate(values)))}
    distances = [index - at[value] for index, value in enumerate(values) if at[value] != index]
    assert min(distances) == 1
    assert max(distances) > 1000


def test_same_seed_plants_alike(lines: list[bytes]) -> None:
    assert list(interleave(lines, 1)) == list(interleave(lines, 1))
    assert list(interleave(lines, 1)) != list(interleave(lines, 2))


def test_too_few_payments_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        list(interleave([b"{}"] * (PLANTED - 1), 1))


@pytest.mark.parametrize("name", sorted(BAD_RECORDS))
def test_bad_record_has_one_fault(lines: list[bytes], name: str) -> None:
    value = BAD_RECORDS[name](msgspec.json.decode(lines[0]))
    reason = REASONS[name]
    if reason is None:
        assert content_digest(decode_payment(value, PARTITIONS)) != content_digest(decode_payment(lines[0], PARTITIONS))
        return
    with pytest.raises(InvalidPaymentError) as raised:
        decode_payment(value, PARTITIONS)
    assert raised.value.reason is reason
