"""The drill of a transaction's requests finds what the stock client does wrong, and nothing of this project's runtime.

`python -m tests.drills.transactions` has all faults, and the Java client; `python -m tests.drills.transactions.mix`
mixes them over 10,000 transactions.
"""

import asyncio
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from tests.bench.peers.cluster import create, delete
from tests.drills.transactions.cell import RECORDS, Cell, Outcome, topics
from tests.drills.transactions.faults import Fault, Kind
from tests.drills.transactions.hop import PROGRAMS
from tests.drills.transactions.judge import Anomalies
from tests.drills.transactions.mix import measure
from tests.tiers import full

pytestmark = pytest.mark.timeout(180)

NONE = Anomalies(0, 0, 0, 0)
LATE_OFFSETS, LATE_END = Fault("TxnOffsetCommit", Kind.DOUBLED), Fault("EndTxn", Kind.DOUBLED)


async def run(kafka: LocalKafka, directory: Path, name: str, fault: Fault) -> Outcome:
    [program] = [program for program in PROGRAMS if program.name == name]
    tag = f"cell-{name.replace(' ', '-')}-{fault.api}"
    await create(kafka, list(topics(tag)))
    try:
        return await Cell(kafka, program, fault, tag, program.argv(""), directory / f"{tag}.log").run()
    finally:
        await delete(kafka, frozenset(topics(tag)).__contains__)


@pytest.mark.parametrize("fault", [LATE_OFFSETS, pytest.param(LATE_END, marks=full)], ids=str)
async def test_a_late_copy_duplicates_records_of_the_stock_client_only(
    kafka: LocalKafka, tmp_path: Path, fault: Fault
) -> None:
    async with asyncio.TaskGroup() as group:
        theirs = group.create_task(run(kafka, tmp_path, "aiokafka", fault))
        ours = group.create_task(run(kafka, tmp_path, "once v2", fault))
    for outcome in (theirs.result(), ours.result()):
        assert outcome.is_injected, outcome
        assert outcome.requests["EndTxn"] >= 3, outcome
    assert theirs.result().anomalies.duplicated >= RECORDS, theirs.result()
    assert theirs.result().evidence.endswith("NoError")
    assert ours.result().anomalies == NONE, ours.result()


@full
async def test_a_random_mix_of_faults_leaves_no_anomaly(tmp_path: Path) -> None:
    found = await measure(tmp_path, tmp_path, transactions=300, seed=1)
    assert found.anomalies == NONE, found
    assert found.ends == [], found
    assert found.faults.total() >= 3, found
