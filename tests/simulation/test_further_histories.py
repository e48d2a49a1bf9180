"""Further histories of the services. They take some minutes: a module of their own, for a process of their own."""

import pytest

from tests.simulation.test_histories import SEEDS, assert_all_pass, simulate
from tests.tiers import full

FURTHER = 68


@full
@pytest.mark.timeout(3600)
def test_further_histories_pass() -> None:
    assert_all_pass(simulate(SEEDS + 1, FURTHER))
