"""Mutants of the runtime are found by the histories that docs/simulation.md names."""

import re
import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.simulation.mutants import MUTANTS
from tests.tiers import full

PAGE = (ROOT / "docs" / "simulation.md").read_text()
FOUND = re.findall(r"^\| ([a-z-]+) \| (.+) \| (\d+) \| .+ \|$", PAGE, re.MULTILINE)
"""Rows of the page's table: the mutant, what it does, and the seed of the first history that finds it."""


def simulate(mutant: str, seed: str, *options: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "tests.simulation", "--first", seed, "--seeds", "1", "--jobs", "1"]
    return subprocess.run([*words, *options, "--mutant", mutant], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_page_names_every_mutant() -> None:
    assert [(mutant, what) for mutant, what, _ in FOUND] == [(name, one.what) for name, one in MUTANTS.items()]


@full
@pytest.mark.parametrize(("mutant", "seed"), [(mutant, seed) for mutant, _, seed in FOUND])
def test_a_mutant_is_found(mutant: str, seed: str) -> None:
    done = simulate(mutant, seed, "--no-shrink")
    assert (done.returncode, done.stdout.partition(", cpu_s")[0]) == (1, "pass 0, fail 1, unknown 0")


def test_a_history_that_fails_is_shrunk_and_printed() -> None:
    [seed] = [seed for mutant, _, seed in FOUND if mutant == "no-member"]
    done = simulate("no-member", seed)
    assert f"again, with its history: make simulate SEEDS=1 FIRST={seed} FAULTS=" in done.stderr
    assert "InitProducerId" in done.stderr
