"""Mutants of the runtime are found by histories, and docs/testing.md says by which."""

import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.tiers import full

PAGE = ROOT / "docs" / "testing.md"


@full
@pytest.mark.timeout(3600)
def test_every_mutant_is_found_and_the_page_says_by_which_history() -> None:
    words = [sys.executable, "-m", "tests.simulation", "--mutants", "--jobs", "1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout in PAGE.read_text()


def test_a_history_that_fails_is_shrunk_and_printed() -> None:
    words = [sys.executable, "-m", "tests.simulation", "--first", "1", "--seeds", "1", "--mutant", "no-dedup"]
    done = subprocess.run([*words, "--jobs", "1"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pass 0, known 0, fail 1, unknown 0" in done.stdout
    assert "again, with its history: make simulate SEEDS=1 FIRST=1 FAULTS=" in done.stderr
    assert "InitProducerId" in done.stderr
