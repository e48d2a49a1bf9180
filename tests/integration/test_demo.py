"""The demonstration: the main job, on real input, under faults."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

EXPECTED = {
    "verdict": "pass",
    "records_in": 28_265,
    "accepted": 28_205,
    "deduplicated": 50,
    "dead_lettered": 10,
    "postings": 56_410,
    "declines": 0,
    "lost": 0,
    "duplicated": 0,
    "torn": 0,
    "drift_minor": 0,
    "accounts": 1_139,
    "accounts_exact": 681,
    "accounts_within_rounding": 458,
    "accounts_off": 0,
    "effects_requested": 28_205,
    "effects_delivered": 28_205,
    "effects_duplicated": 0,
    "effects_in_doubt": 0,
    "effects_failed": 0,
    "faults_injected": 6,
}


def test_the_demonstration_ends_with_the_known_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", "demo", "--json", "--seed", "1993"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {name: result[name] for name in EXPECTED} == EXPECTED
    assert {fault["target"] for fault in result["faults"]} >= {"ingest", "transform", "ledger", "outbox", "redis"}
    assert all(fault["remaining"] > 0 for fault in result["faults"])
