"""Mutants of the runtime are found by histories: those whose history is known."""

import json
import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.tiers import full

FOUND_BY = {
    "offsets-not-awaited": (1, "I7"),
    "offset-too-far": (1, "I6"),
    "resumed-before-restored": (1, "I3"),
    "no-dedup": (1, "I3"),
    "read-uncommitted": (2, "I8"),
    "wrong-group": (1, "I7"),
}
"""The seed of the history, and an invariant that it finds broken."""


@full
@pytest.mark.parametrize("mutant", FOUND_BY)
def test_a_mutant_is_found(mutant: str) -> None:
    seed, invariant = FOUND_BY[mutant]
    words = [sys.executable, "-m", "tests.simulation", "--first", str(seed), "--seeds", "1", "--jobs", "1", "--json"]
    done = subprocess.run(
        [*words, "--mutant", mutant],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    [history] = json.loads(done.stdout)["histories"]
    assert (done.returncode, history["verdict"]) == (1, "fail")
    assert any(finding.startswith(invariant) for finding in history["findings"])
    assert history["history"]
