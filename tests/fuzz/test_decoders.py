"""Every decoder against malformed bytes: arbitrary bytes, and damaged valid ones."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES, Property

EXAMPLES = 100
CPU_S_MAX = 2.0
"""For one input of at most a few KB. The test's timeout finds a decoder that does not end."""

damages = st.lists(st.tuples(st.integers(0), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=4)


def damaged(value: bytes, damage: list[tuple[int, int, bytes]]) -> bytes:
    """The value with parts replaced.

    Args:
        damage: position, number of bytes, and replacement.
    """
    for position, length, replacement in damage:
        at = position % (len(value) + 1)
        value = value[:at] + replacement + value[at + length :]
    return value


def check(case: Property, data: bytes) -> None:
    """Check the property within the time limit. Waiting on a busy machine does not count."""
    begun_s = time.thread_time()
    case.check(data)
    assert time.thread_time() - begun_s < CPU_S_MAX


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", PROPERTIES, ids=[case.name for case in PROPERTIES])
def test_any_bytes_are_a_value_or_the_documented_error(case: Property) -> None:
    for seed in case.seeds:
        check(case, seed)

    @settings(max_examples=EXAMPLES, derandomize=True)
    @given(st.binary(max_size=512))
    def arbitrary(data: bytes) -> None:
        check(case, data)

    @settings(max_examples=EXAMPLES, derandomize=True)
    @given(st.sampled_from(case.seeds), damages)
    def mutated(seed: bytes, damage: list[tuple[int, int, bytes]]) -> None:
        check(case, damaged(seed, damage))

    arbitrary()
    mutated()
