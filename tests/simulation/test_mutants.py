"""Every mutant of the runtime is found by a history, and docs/testing.md says by which."""

import os
import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.simulation.mutants import MUTANTS
from tests.tiers import full


@full
@pytest.mark.timeout(3600)
def test_every_mutant_is_found_as_the_documentation_says() -> None:
    words = [sys.executable, "-m", "tests.simulation", "--mutants", "--jobs", str(os.cpu_count())]
    table = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert "None" not in table
    assert len(table.splitlines()) == len(MUTANTS) + 2
    assert table in (ROOT / "docs" / "testing.md").read_text()
