"""Fields of a later version's request go through waiting, failure, dead letter and a decision."""

import pytest

from services.outbox.domain import Call, Done, Job, Later, after_call, after_claim, resume
from services.outbox.flights import outputs_of
from services.outbox.intake import job_of
from services.outbox.lanes import NO_CALL
from services.outbox.marks import Claim, Mark, Status
from services.outbox.outcomes import Outcome, Refused, Retriable
from services.outbox.waiting import WaitingStore
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_REQUESTS
from shared.events.effects import (
    EffectResult,
    EffectState,
    Resolution,
    ResolutionAction,
    decode_result,
    encode_request,
)
from tests.sinks.effects import effect
from tests.unit.test_outbox_domain import HOLD, NOW_MS

LATER = encode_request(effect(1, "https://example.org/hook"))[:-1] + b',"memo":{"by":"eva"}}'
NEW = Claim(Status.NEW)


def taken_up(value: bytes) -> Job:
    record = Record(EFFECTS_REQUESTS, 3, 7, 0, b"2378", value, (("origin", b"payments.raw:1:2"),))
    return job_of(record, lambda _: True, NOW_MS, doubtful=False)


def called(job: Job, claim: Claim, outcome: Outcome) -> Done | Later:
    decision = after_claim(job, claim, HOLD, NOW_MS)
    assert isinstance(decision, Call)
    return after_call(decision.job, outcome, HOLD, NOW_MS, 0.0)


def stored(later: Done | Later) -> Job:
    """Commit a waiting effect, restore it from the changelog, and take it up again."""
    assert isinstance(later, Later)
    writer, reader = WaitingStore(), WaitingStore()
    writer.put(later.job.effect_id, later.waiting())
    for key, value in writer.changes():
        reader.restore(key, value)
    [(waiting, _)] = reader.due(later.not_before_ms, 1, lambda *_: NO_CALL)
    return resume(waiting, takes_keys=True)


def written(done: Done | Later) -> tuple[EffectResult, list[bytes]]:
    """The result, and the values of the dead letters."""
    assert isinstance(done, Done)
    result, *letters = outputs_of(done, 3)
    return decode_result(result.value or b""), [letter.value or b"" for letter in letters]


def test_a_request_that_waited_and_failed_is_a_dead_letter_with_all_its_fields() -> None:
    waiting = stored(called(taken_up(LATER), NEW, Retriable("busy")))
    result, letters = written(called(stored(called(waiting, NEW, Retriable("busy"))), NEW, Refused("410 Gone")))
    assert result.state == EffectState.FAILED
    assert letters == [LATER]
    assert result.request is not None
    assert encode_request(result.request) == LATER


@pytest.mark.parametrize("state", [EffectState.FAILED, EffectState.IN_DOUBT])
def test_a_decision_on_it_and_the_result_of_another_owner_keep_them(state: EffectState) -> None:
    mark = Mark(state, 5, 1, 1, 0)
    known = after_claim(taken_up(LATER), Claim(Status.KNOWN, mark=mark), HOLD, NOW_MS)
    assert isinstance(known, Done)
    result, _ = written(known)
    assert result.request is not None
    decision = Resolution(result.effect_id, 1, ResolutionAction.ABANDON, result.request)
    abandoned = after_claim(taken_up(encode_request(decision)), Claim(Status.REOPENED, mark=mark), HOLD, NOW_MS)
    assert isinstance(abandoned, Done)
    assert written(abandoned)[1] == [LATER]
