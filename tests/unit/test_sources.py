"""The second line: records that a receiver ignores as repeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.eos.sources import SeenSources, Sources
from shared.events.headers import ORIGIN, REPAIR, SOURCE, Headers


def made_from(place: str, offset: int, *, repair: str = "") -> Headers:
    headers = ((ORIGIN, b"payments.raw:0:0"), (SOURCE, f"{place}:{offset}".encode()))
    return (*headers, (REPAIR, repair.encode())) if repair else headers


def test_a_source_is_admitted_once_and_an_earlier_one_not_at_all() -> None:
    sources = Sources()
    admitted = [sources.admit(made_from("payments.accepted:0", offset)) for offset in (3, 5, 5, 4, 6)]
    assert admitted == [True, True, False, False, True]


def test_upstream_partitions_are_independent() -> None:
    sources = Sources()
    assert sources.admit(made_from("ledger.transfers:1", 9))
    assert sources.admit(made_from("ledger.transfers:2", 4))
    assert sources.admit(made_from("payments.accepted:1", 9))
    assert not sources.admit(made_from("ledger.transfers:1", 9))


def test_several_parts_of_one_source_are_each_admitted_once() -> None:
    sources = Sources()
    parts = [("a", 7), ("b", 7), ("a", 7), ("a", 8), ("b", 7), ("b", 8)]
    admitted = [sources.admit(made_from("ledger.transfers:0", offset), part) for part, offset in parts]
    assert admitted == [True, True, False, True, False, True]


@pytest.mark.parametrize("headers", [(), ((SOURCE, b"nonsense"),), ((SOURCE, b"a:b:-1"),)])
def test_a_record_without_coordinates_is_not_judged(headers: Headers) -> None:
    sources = Sources()
    assert sources.admit(headers)
    assert sources.admit(headers)


def test_a_repair_is_admitted_once_despite_later_sources_and_moves_no_position() -> None:
    sources = Sources()
    assert sources.admit(made_from("payments.accepted:0", 9))
    assert sources.admit(made_from("payments.accepted:0", 2, repair="r1:0"))
    assert not sources.admit(made_from("payments.accepted:0", 2, repair="r1:0"))
    assert sources.admit(made_from("payments.accepted:0", 3, repair="r1:1"))
    assert sources.admit(made_from("payments.accepted:0", 4, repair="r2:0"))
    assert not sources.admit(made_from("payments.accepted:0", 9))
    assert sources.admit(made_from("payments.accepted:0", 10))


def test_sources_of_an_aborted_transaction_are_admitted_again() -> None:
    sources = Sources()
    assert sources.admit(made_from("payments.accepted:0", 1), "a")
    sources.commit()
    assert sources.admit(made_from("payments.accepted:0", 1), "b")
    assert sources.admit(made_from("payments.accepted:0", 2), "a")
    assert sources.admit(made_from("payments.accepted:0", 0, repair="r:0"))
    sources.rollback()
    assert sources.admit(made_from("payments.accepted:0", 1), "b")
    assert sources.admit(made_from("payments.accepted:0", 2), "a")
    assert sources.admit(made_from("payments.accepted:0", 0, repair="r:0"))
    assert not sources.admit(made_from("payments.accepted:0", 1), "a")


_records = st.lists(st.tuples(st.sampled_from(["a:0", "a:1"]), st.integers(0, 30), st.sampled_from(["", "x", "y"])))


@given(_records, _records)
def test_restored_sources_lead_to_the_same_decisions(
    before: list[tuple[str, int, str]], after: list[tuple[str, int, str]]
) -> None:
    live = Sources()
    for place, offset, part in before:
        live.admit(made_from(place, offset), part)
    restored = Sources(live.seen())
    for place, offset, part in after:
        assert restored.admit(made_from(place, offset), part) == live.admit(made_from(place, offset), part)
    assert restored.seen() == live.seen()


def test_without_sources_nothing_is_written() -> None:
    assert Sources().seen() == SeenSources()
