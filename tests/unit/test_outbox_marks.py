"""Marks: a few bytes that round-trip, and results written from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.outbox.marks import (
    ANSWER_NOT_KEPT,
    COUNT_MAX,
    Mark,
    decode_former_mark,
    decode_mark,
    encode_mark,
    mark_of,
    result_of,
)
from shared.events.effects import EffectFailure, EffectRequest, EffectResult, EffectState

REQUEST = EffectRequest("ab" * 16, "receipt", "debit", "file:receipts", "alice", "p1", "alice", "2024-05-01")
NOW_MS = 1_700_000_000_000

counts = st.one_of(st.integers(0, 300), st.integers(0, COUNT_MAX))
times = st.integers(0, 2**48 - 1)
kinds = st.sampled_from(
    [
        (EffectState.SENT.value, ""),
        (EffectState.IN_DOUBT.value, ""),
        *((EffectState.FAILED.value, reason) for reason in ("", *(failure.value for failure in EffectFailure))),
    ]
)
marks = st.builds(Mark, st.just(""), times, counts, counts, counts).flatmap(
    lambda mark: kinds.map(lambda kind: mark._replace(state=kind[0], reason=kind[1]))
)
results = st.builds(
    EffectResult,
    effect_id=st.just(REQUEST.effect_id),
    state=st.sampled_from([state.value for state in EffectState]),
    at_ms=times,
    attempts=counts,
    revision=counts,
    resends=counts,
    reason=st.text(max_size=400),
    detail=st.text(max_size=400),
)


@given(marks)
def test_a_mark_round_trips(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


@given(results)
def test_the_mark_of_any_result_round_trips(result: EffectResult) -> None:
    mark = mark_of(result)
    assert decode_mark(encode_mark(mark)) == mark
    assert mark_of(result_of(result.effect_id, mark, REQUEST)) == mark


@pytest.mark.parametrize(
    ("mark", "golden"),
    [
        (Mark(EffectState.SENT, NOW_MS, 1, 1, 0), "73018bcfe56800010100"),
        (Mark(EffectState.IN_DOUBT, NOW_MS, 300, 2, 1), "64018bcfe56800ac020201"),
        (Mark(EffectState.FAILED, 5, 1, 1, 0, EffectFailure.REFUSED), "72000000000005010100"),
        (Mark(EffectState.FAILED, 5, 1, 1, 0, EffectFailure.RETRIES_EXHAUSTED), "78000000000005010100"),
        (Mark(EffectState.FAILED, 5, 1, 1, 0, EffectFailure.ABANDONED), "61000000000005010100"),
        (Mark(EffectState.FAILED, 5, 1, 1, 0), "66000000000005010100"),
    ],
)
def test_golden_bytes(mark: Mark, golden: str) -> None:
    assert encode_mark(mark).hex() == golden
    assert decode_mark(bytes.fromhex(golden)) == mark


@pytest.mark.parametrize("state", list(EffectState))
def test_a_result_is_written_again_without_the_destinations_answer(state: EffectState) -> None:
    sent = state is EffectState.SENT
    result = EffectResult(
        REQUEST.effect_id,
        state,
        NOW_MS,
        attempts=3,
        revision=2,
        resends=1,
        reason=EffectFailure.REFUSED if state is EffectState.FAILED else "",
        detail="" if sent else ANSWER_NOT_KEPT,
        request=None if sent else REQUEST,
    )
    assert result_of(REQUEST.effect_id, decode_mark(encode_mark(mark_of(result))), REQUEST) == result


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (b"s|1700000000000|1|1|0", Mark(EffectState.SENT, NOW_MS, 1, 1, 0)),
        (
            b"f|1700000000000|4|2|1|refused|410 Gone",
            Mark(EffectState.FAILED, NOW_MS, 4, 2, 1, EffectFailure.REFUSED),
        ),
        (b"d|5|1|1|0||answer lost", Mark(EffectState.IN_DOUBT, 5, 1, 1, 0)),
        (b"d|5|1|1|0|a sentence", Mark(EffectState.IN_DOUBT, 5, 1, 1, 0)),
    ],
)
def test_a_former_mark_is_read(value: bytes, mark: Mark) -> None:
    assert decode_former_mark(value) == mark


@pytest.mark.parametrize("value", [b"", b"c|7.1|5|0|outbox", b"s|5|1|1", b"x|5|1|1|0", b"s|a|1|1|0", b"s|1_1|0|2|3"])
def test_an_invalid_former_mark_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="no mark"):
        decode_former_mark(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "73",
        "73018bcfe56800",
        "73018bcfe568000101",
        "73018bcfe5680001010000",
        "73018bcfe5680001ff",
        "00018bcfe56800010100",
    ],
)
def test_an_invalid_mark_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="no mark"):
        decode_mark(bytes.fromhex(value))


@pytest.mark.parametrize(
    "mark",
    [
        Mark("waiting", 5, 1, 1, 0),
        Mark(EffectState.SENT, 5, 1, 1, 0, EffectFailure.REFUSED),
        Mark(EffectState.SENT, -5, 1, 1, 0),
        Mark(EffectState.SENT, 2**48, 1, 1, 0),
        Mark(EffectState.SENT, 5, -1, 1, 0),
        Mark(EffectState.SENT, 5, 1, COUNT_MAX + 1, 0),
    ],
)
def test_an_unreadable_mark_is_not_written(mark: Mark) -> None:
    with pytest.raises(ValueError, match="known state"):
        encode_mark(mark)
