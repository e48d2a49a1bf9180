"""The outbox's input records, and its output records of a decided effect."""

import pytest

from services.outbox.domain import Done, Job
from services.outbox.flights import outputs_of
from services.outbox.intake import job_of
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.codec import InternalInputError
from shared.events.effects import (
    EffectFailure,
    EffectRequest,
    EffectResult,
    EffectState,
    RequestRecord,
    Resolution,
    decode_request,
    decode_result,
    encode_request,
)
from shared.events.headers import Headers
from tests.sinks.effects import effect

ORIGIN = b"payments.raw:1:2"
REQUEST = effect(1, "file:receipts")


def record(value: RequestRecord | bytes | None, headers: Headers = (("origin", ORIGIN),), offset: int = 7) -> Record:
    encoded = value if value is None or isinstance(value, bytes) else encode_request(value)
    return Record(EFFECTS_REQUESTS, 3, offset, 0, b"2378", encoded, headers)


def known_by_file(request: EffectRequest) -> bool:
    return request.destination.startswith("file:")


NOW_MS = 1_700_000_000_000


def taken_up(found: Record, *, doubtful: bool = False) -> Job:
    return job_of(found, known_by_file, NOW_MS, doubtful=doubtful)


def test_a_request_is_a_job_at_its_offset() -> None:
    job = taken_up(record(REQUEST))
    assert job == Job(REQUEST, b"effects.requests:3:7", ORIGIN, 7, takes_keys=True, first_ms=NOW_MS)
    assert taken_up(record(REQUEST), doubtful=True).doubtful
    assert taken_up(record(effect(1, "mailto:bob@example.org"))).takes_keys is False


def test_a_decision_is_a_job_for_the_result_that_the_person_saw() -> None:
    job = taken_up(record(Resolution(REQUEST.effect_id, 4, "resend", REQUEST, resends=2)))
    assert (job.request, job.revision, job.action, job.stored) == (REQUEST, 4, "resend", False)
    assert (job.resends, job.resends_before, job.settles_doubt) == (2, 2, True)
    failed = Resolution(REQUEST.effect_id, 4, "resend", REQUEST, settles_doubt=False)
    assert taken_up(record(failed)).settles_doubt is False


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(None), "effects.requests:3:7: .*truncated"),
        (record(b"{}"), "effects.requests:3:7: "),
        (record(b'{"type":"rumour"}'), "effects.requests:3:7: .*rumour"),
        (record(REQUEST, ()), "effects.requests:3:7 has no origin"),
    ],
)
def test_an_input_that_neither_the_ledger_nor_a_person_writes_is_a_defect(bad: Record, message: str) -> None:
    with pytest.raises(InternalInputError, match=message):
        taken_up(bad)


def done(state: EffectState, reason: str = "", detail: str = "") -> Done:
    job = taken_up(record(REQUEST))
    request = None if state is EffectState.SENT else REQUEST
    return Done(job, EffectResult(REQUEST.effect_id, state, 5, 1, 1, 0, reason, detail, request))


@pytest.mark.parametrize("state", [EffectState.SENT, EffectState.IN_DOUBT])
def test_a_result_is_on_the_partition_of_its_request_and_names_its_source(state: EffectState) -> None:
    decided = done(state)
    [output] = outputs_of(decided, 3)
    assert (output.topic, output.partition, output.key) == (EFFECTS_RESULTS, 3, REQUEST.effect_id.encode())
    assert output.headers == (("origin", ORIGIN), ("source", b"effects.requests:3:7"))
    assert decode_result(output.value or b"") == decided.result


def test_a_failure_is_also_a_dead_letter_with_the_unchanged_request() -> None:
    result, letter = outputs_of(done(EffectState.FAILED, EffectFailure.REFUSED, "410 Gone"), 3)
    assert result.topic == EFFECTS_RESULTS
    assert (letter.topic, letter.partition, letter.key) == (EFFECTS_DEAD_LETTER, 3, b"2378")
    assert decode_request(letter.value or b"") == REQUEST
    assert dict(letter.headers) == {
        "origin": ORIGIN,
        "source": b"effects.requests:3:7",
        "service": b"outbox",
        "reason": b"refused",
        "detail": b"410 Gone",
    }
