"""A ledger whose transactions each have records of all partitions: it takes none before each partition has some.

Else a transaction takes what has been fetched, which may be one partition's. `tests.upgrade.test_torn` runs it.
"""

import asyncio
import runpy
from typing import Any

from shared.kafka.runtime.pipeline import PipelineWorker
from tests.partitions import PARTITIONS

YIELD_S = 0.01


def gather() -> None:
    """Have workers take records only when each partition has some."""
    patched: Any = PipelineWorker
    wait, take = patched._input, patched._take

    async def yielding(self: Any, timeout_s: float | None = None) -> None:
        await wait(self, timeout_s)
        await asyncio.sleep(YIELD_S)  # records that are waiting do not let the fetcher run by themselves

    def taking(self: Any, taken: Any) -> Any:
        return take(self, taken) if len(self._fetcher.waiting()) == PARTITIONS else []

    patched._input, patched._take = yielding, taking


if __name__ == "__main__":
    gather()
    runpy.run_module("services.ledger", run_name="__main__", alter_sys=True)
