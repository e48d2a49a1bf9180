"""The demonstration: the main job, on real input, under faults."""

import json
import subprocess
import sys

import pytest

from deploy.demo.reconciling import COMPARED
from deploy.demo.run import ACCOUNTS

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
    spark = result["reconciliation"]
    assert (spark["verdict"], spark["breaks"], spark["settled"]) == ("clean", 0, True)
    assert {name: spark["figures"][other] for name, other in COMPARED.items()} == {
        name: result[name] for name in COMPARED
    }
    [crowns] = spark["currencies"]
    assert (crowns["currency"], crowns["closing_minor"], crowns["in_transit_minor"]) == ("CZK", "0", "0")
    assert crowns["clients"] == ACCOUNTS
