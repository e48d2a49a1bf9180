"""Query parameters of the read side and the age of its answers, without HTTP."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.balances.api import parameters
from services.balances.api.parameters import EntriesQuery, PaymentQuery, Place, Query, RefusedError
from services.balances.api.v1 import parameters as v1
from services.balances.projection.progress import PartitionFreshness, Position, as_of, overall
from shared.events.fields import is_account
from tests.ledgers import DAY
from tests.partitions import PARTITIONS, partition_for

OFFSETS = st.integers(0, 10**18 - 1)
QUERIES = st.builds(
    EntriesQuery, currency=st.sampled_from([None, "EUR", "USD"]), order=st.sampled_from(["newest", "oldest"])
)
ACCOUNTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


def after(query: EntriesQuery, cursor: str) -> EntriesQuery:
    return EntriesQuery(currency=query.currency, order=query.order, after=cursor)


@given(ACCOUNTS, QUERIES, st.builds(Place, OFFSETS, st.integers(0, 10)))
def test_a_cursor_is_read_back(account: str, query: EntriesQuery, place: Place) -> None:
    cursor = parameters.encode_cursor(account, query, place)
    assert parameters.decode_cursor(account, after(query, cursor)) == place
    parsed = parameters.parse(EntriesQuery, [("after", cursor)])
    assert parsed.after == cursor


@given(QUERIES, QUERIES, st.sampled_from(["a", "b"]))
def test_a_cursor_of_another_query_is_refused(made_for: EntriesQuery, query: EntriesQuery, account: str) -> None:
    cursor = parameters.encode_cursor("a", made_for, Place(7, 0))
    if (account, query.currency, query.order) == ("a", made_for.currency, made_for.order):
        assert parameters.decode_cursor(account, after(query, cursor)) == Place(7, 0)
        return
    with pytest.raises(RefusedError, match="next"):
        parameters.decode_cursor(account, after(query, cursor))


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9_=-]{0,80}", fullmatch=True))
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as caught:
        parameters.decode_cursor("a", EntriesQuery(after=text))
    assert caught.value.status == 400


@pytest.mark.parametrize("value_date", [DAY, ""])
def test_a_cursor_of_v1_is_read_back(value_date: str) -> None:
    asked = "payments", "2378"
    place = v1.DatedPlace(value_date, 7, 0)
    assert v1.decode_cursor(asked, v1.encode_cursor(asked, place)) == place


@pytest.mark.parametrize("value_date", ["\0", "2026-02-30"])
def test_a_forged_cursor_of_v1_names_no_place(value_date: str) -> None:
    asked = "payments", "2378"
    with pytest.raises(RefusedError, match="next"):
        v1.decode_cursor(asked, v1.encode_cursor(asked, v1.DatedPlace(value_date, 7, 0)))


@given(st.dictionaries(st.integers(0, PARTITIONS - 1), OFFSETS, min_size=1), st.booleans())
def test_records_to_wait_for_are_read(places: dict[int, int], named: bool) -> None:
    topic = "ledger.postings:" if named else ""
    text = ",".join(f"{topic}{partition}:{offset}" for partition, offset in places.items())
    assert parameters.wanted(text, PARTITIONS) == places


def test_the_last_record_of_each_partition_counts() -> None:
    assert parameters.wanted("1:7,1:9,1:8", PARTITIONS) == {1: 9}
    assert parameters.wanted(None, PARTITIONS) == {}


@given(st.text(max_size=20))
def test_any_text_names_records_or_is_refused(text: str) -> None:
    with suppress(RefusedError):
        found = parameters.wanted(text, PARTITIONS)
        assert all(0 <= partition < PARTITIONS and offset >= 0 for partition, offset in found.items())


@given(
    st.lists(st.tuples(st.sampled_from(["limit", "timeout", "wait", "order", "x"]), st.text(max_size=5)), max_size=3)
)
def test_any_query_is_read_or_refused(items: list[tuple[str, str]]) -> None:
    for kind in (Query, EntriesQuery, PaymentQuery):
        with suppress(RefusedError):
            parameters.parse(kind, items)


@given(ACCOUNTS)
def test_every_account_has_its_partition(account: str) -> None:
    assert is_account(account, PARTITIONS)
    assert parameters.home(account, PARTITIONS) == partition_for(account)


@pytest.mark.parametrize("account", ["in-transit@0", "fx:EUR@3", "suspense@5", "cash@1"])
def test_every_house_account_can_be_queried(account: str) -> None:
    assert parameters.home(account, PARTITIONS) == int(account[-1])


def freshness(partition: int, next_offset: int, stable: int | None, seconds: float | None) -> PartitionFreshness:
    return PartitionFreshness(partition, next_offset, stable, seconds, None if seconds is None else 0.4)


@pytest.mark.parametrize(
    ("next_offset", "known", "expected"),
    [
        (7, None, Position(1, 7, None, None, None, None)),
        (7, freshness(1, 7, None, None), Position(1, 7, None, None, None, None)),
        (7, freshness(1, 7, 10, 2.5), Position(1, 7, 10, 3, 2.5, 0.4)),
        (8, freshness(1, 8, 8, 0.4), Position(1, 8, 8, 0, 0.4, 0.4)),  # others may have come since
        (10, freshness(1, 7, 10, 2.5), Position(1, 10, 10, 0, 0.4, 0.4)),  # read meanwhile
        (12, freshness(1, 7, 10, 2.5), Position(1, 12, 10, 0, 0.4, 0.4)),  # more came meanwhile as well
        (0, freshness(1, 8, 8, 0.4), Position(1, 0, 8, 8, None, 0.4)),  # the view restarted meanwhile
    ],
)
def test_the_age_of_an_answer(next_offset: int, known: PartitionFreshness | None, expected: Position) -> None:
    assert as_of({1: next_offset}, {} if known is None else {1: known}, [1]) == (expected,)


def test_the_age_includes_the_time_that_the_answer_took() -> None:
    known = {1: freshness(1, 7, 10, 2.5), 2: freshness(2, 8, 8, 0.4), 3: freshness(3, 7, None, None)}
    assert as_of({1: 7, 2: 8, 3: 7}, known, [1, 2, 3], 60.0) == (
        Position(1, 7, 10, 3, 62.5, 60.4),
        Position(2, 8, 8, 0, 60.4, 60.4),
        Position(3, 7, None, None, None, None),
    )


def test_a_partition_that_was_never_read_is_at_offset_0() -> None:
    assert as_of({}, {3: freshness(3, 0, 5, 1.0)}, [3]) == (Position(3, 0, 5, 5, 1.0, 0.4),)


def test_an_answer_is_as_old_as_its_oldest_partition() -> None:
    near, far = Position(0, 5, 5, 0, 0.4, 0.4), Position(1, 5, 9, 4, 2.0, 0.4)
    unknown = Position(2, 5, None, None, None, None)
    assert overall((near,)).caught_up is True
    both = overall((near, far))
    assert (both.caught_up, both.offsets_behind, both.seconds_behind) == (False, 4, 2.0)
    some = overall((near, unknown))
    assert (some.caught_up, some.offsets_behind, some.seconds_behind) == (None, None, None)
