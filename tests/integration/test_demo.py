"""The demonstration: the whole pipeline on real input, under faults."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.run import ACCOUNTS
from deploy.drills.opinions import COMPARED
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(900)]

EXPECTED = {
    "verdict": "pass",
    "view_matches": True,
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


def test_the_demonstration_ends_with_the_known_figures_and_can_be_watched(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "deploy.cli.main", "demo", "--json", "--watch", "--seed", "1993"]
    said = tmp_path / "said"
    with said.open("w") as stderr, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True) as demo:
        assert demo.stdout is not None
        result = demo.stdout.readline()
        try:
            assert result, said.read_text()
            [page] = re.findall(r"watch it at http://(\S+)", said.read_text())
            with urllib.request.urlopen(f"http://{page}", timeout=10) as answer:
                assert b"<title>" in answer.read()
        finally:
            demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, said.read_text()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{page}", timeout=10)
    check(json.loads(result))


def check(result: dict[str, Any]) -> None:
    """Fail unless every figure is known and all counters agree."""
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
    view = result["view"]
    assert view["balances"] == spark["balances"] == result["balances_digest"]
    assert view["currencies"] == {"CZK": [0, int(crowns["clients_closing_minor"])]}
    # A partition's last record is followed by its transaction's marker
    ends = result["end_offsets"]["ledger.postings"]
    assert [view["next_offsets"][str(number)] for number in range(len(ends))] == ends
