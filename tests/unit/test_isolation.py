"""A record that is refused is found among others, and they are not."""

from hypothesis import given
from hypothesis import strategies as st

from shared.eos.isolation import Isolation


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)))))
def test_each_refused_record_is_found_alone_and_each_other_one_is_committed(case: tuple[int, set[int]]) -> None:
    count, bad = case
    isolation = Isolation()
    committed: list[int] = []
    replaced: list[int] = []
    position = transactions = 0
    while position < count:
        transactions += 1
        end = min(count, position + (isolation.records_max or count))
        taken = range(position, end)
        if any(offset in bad and offset != isolation.alone for offset in taken):
            isolation.refused(position, end, len(taken))
            continue
        for offset in taken:
            (replaced if offset == isolation.alone else committed).append(offset)
        isolation.committed(end)
        position = end
    assert (set(replaced), set(committed)) == (bad, set(range(count)) - bad)
    assert transactions <= 1 + 3 * len(bad) * (count.bit_length() + 1)
    assert isolation.records_max is None
