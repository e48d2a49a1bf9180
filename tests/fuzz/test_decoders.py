"""Every decoder against bytes that nobody meant to send: arbitrary ones, and valid ones damaged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES, Property

EXAMPLES = 100
DEADLINE_MS = 2000
"""For one input of at most a few KB; a decoder that does not end is found as well."""

damages = st.lists(st.tuples(st.integers(0), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=4)


def damaged(value: bytes, damage: list[tuple[int, int, bytes]]) -> bytes:
    """The value with stretches of it replaced.

    Args:
        damage: where, how many bytes, and by what.
    """
    for position, length, replacement in damage:
        at = position % (len(value) + 1)
        value = value[:at] + replacement + value[at + length :]
    return value


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", PROPERTIES, ids=[case.name for case in PROPERTIES])
def test_any_bytes_are_a_value_or_the_documented_error(case: Property) -> None:
    for seed in case.seeds:
        case.check(seed)

    @settings(max_examples=EXAMPLES, deadline=DEADLINE_MS, derandomize=True)
    @given(st.binary(max_size=512))
    def arbitrary(data: bytes) -> None:
        case.check(data)

    @settings(max_examples=EXAMPLES, deadline=DEADLINE_MS, derandomize=True)
    @given(st.sampled_from(case.seeds), damages)
    def mutated(seed: bytes, damage: list[tuple[int, int, bytes]]) -> None:
        case.check(damaged(seed, damage))

    arbitrary()
    mutated()
