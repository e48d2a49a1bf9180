"""Repair of an effect request whose result was lost: nothing is sent, and nothing is guessed."""

import pytest

from deploy.drills.outbox import requests_to
from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import Mender, Sizes, mender_of
from deploy.repairs.reference import History, Reference
from services.transform.domain import ReferenceData
from shared.eos.records import Output, Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.effects import (
    TRUST_PREFIX,
    WAITING_PREFIX,
    EffectState,
    Trust,
    Waiting,
    decode_result,
    decode_subscriptions,
    decode_trust,
    encode_request,
    encode_trust,
    encode_waiting,
)
from shared.events.headers import DETAIL, ORIGIN, REASON, SOURCE, Headers
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS

NOW_MS = 1_700_000_000_000
[REQUEST] = requests_to("mailto:alice@example.org", 1)
HEADERS: Headers = ((ORIGIN, b"payments.raw:2:5"), (SOURCE, b"ledger.transfers:2:6"))
RECORD = Record(EFFECTS_REQUESTS, 2, 7, NOW_MS, REQUEST.account.encode(), encode_request(REQUEST), HEADERS)


@pytest.fixture
def mender() -> Mender:
    evidence = Evidence("127.0.0.1:1", "outbox", [], PARTITIONS, 1)
    reference = Reference(ReferenceData({}, {}), History(decode_subscriptions), INSTALLATION, (0,) * PARTITIONS)
    made = mender_of("outbox", 2, Sizes(1, 1, PARTITIONS), reference, evidence, NOW_MS)
    made.store.restore(TRUST_PREFIX + b"redis", encode_trust(Trust("an incarnation", True)))
    return made


def result(outputs: list[Output]) -> tuple[str, str]:
    [found] = [decode_result(output.value or b"") for output in outputs if output.topic == EFFECTS_RESULTS]
    assert found.effect_id == REQUEST.effect_id
    return found.state, found.reason


def test_without_any_evidence_an_effect_is_in_doubt_and_redis_must_be_rebuilt(mender: Mender) -> None:
    outputs = mender.mend(RECORD, [])
    assert result(outputs) == (EffectState.IN_DOUBT, "")
    [(_, value)] = mender.store.changes()
    assert decode_trust(value or b"").told is False


def test_a_dead_letter_proves_the_failure_and_its_reason(mender: Mender) -> None:
    why: Headers = ((REASON, b"refused"), (DETAIL, b"410"))
    letter = Record(EFFECTS_DEAD_LETTER, 2, 3, NOW_MS, b"key", encode_request(REQUEST), (*HEADERS, *why))
    assert result(mender.mend(RECORD, [letter])) == (EffectState.FAILED, "refused")


def test_an_existing_result_is_kept(mender: Mender) -> None:
    [doubt] = mender.mend(RECORD, [])
    exists = Record(EFFECTS_RESULTS, 2, 4, NOW_MS, doubt.key, doubt.value, doubt.headers)
    assert result(mender.mend(RECORD, [exists])) == (EffectState.IN_DOUBT, "")


def test_a_waiting_effect_is_left_to_the_outbox(mender: Mender) -> None:
    waiting = Waiting(REQUEST, "effects.requests:2:7", "payments.raw:2:5", 1, NOW_MS, NOW_MS, 7)
    mender.store.restore(WAITING_PREFIX + REQUEST.effect_id.encode(), encode_waiting(waiting))
    assert mender.mend(RECORD, []) == []
