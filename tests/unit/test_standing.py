"""A partition's scope that goes on no more ends the service; one that takes its time does not."""

import pytest

from shared.eos.errors import FatalError
from shared.kafka.session import STANDING_S, refuse_standing


def test_one_that_stands_is_named() -> None:
    with pytest.raises(FatalError, match=f"partition 4 has not gone on for {STANDING_S + 1:.0f} s"):
        refuse_standing({3: 1000.0, 4: 1000.0 - STANDING_S - 1}, 1000.0)


def test_one_that_takes_its_time_is_left_alone() -> None:
    refuse_standing({}, 1000.0)
    refuse_standing({3: 1000.0 - STANDING_S, 4: 1000.0}, 1000.0)
