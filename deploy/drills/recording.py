"""A history of registers, recorded on a stage and judged at its end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deploy.drills.checker import Fate, check, fates
from deploy.drills.registers import PARTITIONS, READERS, WRITERS, Registers
from deploy.drills.stage import Stage

STALL_S: Final = 45.0
"""A transaction's timeout, the 10 s until the coordinator looks for it, and the time of a broker's failover, twice."""


@asynccontextmanager
async def recording(stage: Stage, *, pause_s: float = 0.05) -> AsyncIterator[Registers]:
    """Run the workload on a topic of the stage's own while the context is entered; then judge its history."""
    topic = await stage.topic(PARTITIONS, min_insync_replicas="2")
    seed = stage.random.getrandbits(32)
    registers = Registers(stage.access, topic, f"{stage.name}-registers", seed, lambda: stage.now_s, pause_s=pause_s)
    async with registers.run():
        stage.step(f"{WRITERS} writers append to {PARTITIONS} registers in transactions, {READERS} readers follow")
        yield registers
    judge(stage, registers)


def judge(stage: Stage, registers: Registers) -> None:
    """Note what the history shows: how its transactions ended, and its anomalies."""
    history = registers.history
    counts = fates(history)
    stage.journal.records += len(history.log)
    row: dict[str, str | int | float | None] = {fate.value: count for fate, count in counts.items()}
    row["values in the log"] = len(history.log)
    stage.journal.tables["Transactions on registers, as their clients know them"] = [row]
    committed = counts[Fate.COMMITTED]
    stage.expect_that("transactions committed on registers", committed, "at least 1", holds=committed > 0)
    stage.expect("every transaction on registers has ended, and was read to its end", registers.settled, True)
    for kind, where in check(history, stall_s=STALL_S).items():
        stage.anomaly(kind, where)
