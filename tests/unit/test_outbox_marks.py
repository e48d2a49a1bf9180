"""Marks: short strings that round-trip, and results written from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.outbox.marks import TEXT_CHARS_MAX, Mark, decode_mark, encode_mark, mark_of, result_of
from shared.events.effects import EffectFailure, EffectRequest, EffectResult, EffectState

REQUEST = EffectRequest("ab" * 16, "receipt", "debit", "file:receipts", "alice", "p1", "alice", "2024-05-01")

counts = st.integers(0, 2**63)
fitting = st.text(st.characters(blacklist_categories=["C", "Z"], blacklist_characters="|"), max_size=TEXT_CHARS_MAX)
states = st.sampled_from([state.value for state in EffectState])
marks = st.builds(Mark, states, counts, counts, counts, counts, fitting, fitting)
results = st.builds(
    EffectResult,
    effect_id=st.just(REQUEST.effect_id),
    state=states,
    at_ms=counts,
    attempts=counts,
    revision=counts,
    resends=counts,
    reason=st.text(max_size=2 * TEXT_CHARS_MAX),
    detail=st.text(max_size=2 * TEXT_CHARS_MAX),
)


@given(marks)
def test_a_mark_round_trips(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


@given(results)
def test_the_mark_of_any_result_round_trips(result: EffectResult) -> None:
    mark = mark_of(result)
    assert decode_mark(encode_mark(mark)) == mark
    again = result_of(result.effect_id, mark, REQUEST)
    assert mark_of(again) == mark


def test_a_failure_is_written_again_whole() -> None:
    result = EffectResult(
        REQUEST.effect_id,
        EffectState.FAILED,
        1_700_000_000_000,
        attempts=3,
        revision=2,
        resends=1,
        reason=EffectFailure.REFUSED,
        detail="410 Gone: the subscriber left",
        request=REQUEST,
    )
    assert result_of(REQUEST.effect_id, decode_mark(encode_mark(mark_of(result))), REQUEST) == result


def test_the_mark_of_a_sent_effect_has_neither_detail_nor_request() -> None:
    result = EffectResult(REQUEST.effect_id, EffectState.SENT, 1_700_000_000_000, 1, detail="250 queued as 4F2A")
    assert encode_mark(mark_of(result)) == b"s|1700000000000|1|1|0"
    assert result_of(REQUEST.effect_id, mark_of(result), REQUEST) == EffectResult(
        REQUEST.effect_id, EffectState.SENT, 1_700_000_000_000, 1
    )


def test_details_are_made_to_fit() -> None:
    mark = Mark(EffectState.IN_DOUBT, 5, 1, 1, 0, "", "a|b\r\nc" + "x" * 300)
    assert decode_mark(encode_mark(mark)).detail == ("a/b  c" + "x" * 300)[:TEXT_CHARS_MAX]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"c|7.1|5|0|outbox",
        b"s|5|1|1",
        b"x|5|1|1|0",
        b"s|5|1|1|0|a|b|c",
        b"s|a|1|1|0",
        b"s|11|0|-2|3",
        b"s|1_1|0|2|3",
    ],
)
def test_an_invalid_mark_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="no mark"):
        decode_mark(value)


@pytest.mark.parametrize("mark", [Mark("waiting", 5, 1, 1, 0), Mark(EffectState.SENT, -5, 1, 1, 0)])
def test_an_unreadable_mark_is_not_written(mark: Mark) -> None:
    with pytest.raises(ValueError, match="known state"):
        encode_mark(mark)
