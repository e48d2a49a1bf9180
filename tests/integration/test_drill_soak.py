"""A minute of the soak: random faults on the whole stack, and every judge at the end."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from deploy.drills.drill import LOCAL, Verdict
from deploy.drills.few_rows import for_few_rows
from deploy.drills.history import History
from deploy.drills.run import run_drills
from deploy.drills.soak import HISTORY, soak_drill
from tests.tiers import full

pytestmark = [pytest.mark.timeout(2400), full]


def test_a_minute_of_faults_leaves_every_payment_booked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in for_few_rows(tmp_path / "spark").items():
        monkeypatch.setenv(name, value)
    one = soak_drill(1, tmp_path / "kept")
    [result] = asyncio.run(run_drills([one], tmp_path, seed=3, on=LOCAL, say=print, done=lambda _: None))
    journal = result.journal
    assert result.verdict is Verdict.AS_EXPECTED, result.reason
    assert journal.faults
    assert all(fault.healed_s is not None for fault in journal.faults)
    assert journal.anomalies == []
    assert journal.records > 1000
    seen = {one.what for one in journal.observations}
    assert {"verdict of `once verify`", "what Spark found, or counted otherwise", "where the view differs"} <= seen
    assert {name for sample in journal.samples for name in sample.values} >= {
        "records/s: payments.raw",
        "lag, records: ledger",
    }
    history = msgspec.json.decode((tmp_path / "kept" / HISTORY).read_bytes(), type=History)
    assert history.log
