"""Histories of the services from their seeds: every one passes, and a seed gives the same history each time."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import ROOT
from tests.tiers import mostly_full

SEEDS = 12
OTHER_SEEDS = {1: 3, 12: 1}
"""By the number of partitions: each costs one producer for each service."""


def simulate(first: int, seeds: int, *options: str) -> dict[str, Any]:
    """Run `make simulate`'s command."""
    words = [sys.executable, "-m", "tests.simulation", "--first", str(first), "--seeds", str(seeds), "--jobs", "1"]
    done = subprocess.run([*words, "--json", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (found["pass"] == seeds)
    return found


def assert_all_pass(found: dict[str, Any]) -> None:
    """Check that each history passes."""
    failed = [one for one in found["histories"] if one["verdict"] != "pass"]
    assert not failed, [(one["seed"], one["findings"]) for one in failed]


def digests(found: dict[str, Any]) -> list[str]:
    return [history["digest"] for history in found["histories"]]


@pytest.fixture(scope="module")
def histories() -> dict[str, Any]:
    """The histories of `make test`."""
    return simulate(1, SEEDS)


def test_every_history_passes(histories: dict[str, Any]) -> None:
    assert_all_pass(histories)


@pytest.mark.parametrize("partitions", [1, 12])
def test_histories_with_other_numbers_of_partitions_pass(partitions: int) -> None:
    assert_all_pass(simulate(1, OTHER_SEEDS[partitions], "--partitions", str(partitions)))


@pytest.mark.parametrize("seeds", mostly_full([3, SEEDS], [3]))
def test_a_seed_gives_the_same_history_in_another_process(histories: dict[str, Any], seeds: int) -> None:
    assert digests(simulate(1, seeds)) == digests(histories)[:seeds]


def test_an_instance_that_was_stopped_while_it_was_paused_returns() -> None:
    """It ends after the healing only."""
    assert_all_pass(simulate(2244, 1, "--faults", "3,4"))
