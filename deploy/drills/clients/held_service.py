"""A service whose scopes stop for ever between the offsets and EndTxn. `deploy.drills.tearing` starts it.

It is the shipped service, except that a transaction which reaches the given input offset is never ended.
"""

import asyncio
import json
import runpy
import sys
from collections import defaultdict
from typing import Any

from shared.kafka.runtime.pipeline import PipelineWorker
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember

LOOK_S = 0.05
HELD = "transaction held: "
"""Its output, followed by the service and the input partition."""


def hold(until: dict[int, int]) -> None:
    """Never end a transaction that commits an offset at or beyond the one given for its input partition."""
    send_offsets, commit = TransactionalProducer.send_offsets, TransactionalProducer.commit
    held: defaultdict[TransactionalProducer, list[str]] = defaultdict(list)

    async def sending(
        self: TransactionalProducer, member: GroupMember, offsets: dict[tuple[str, int], int], metadata: str = ""
    ) -> None:
        await send_offsets(self, member, offsets, metadata)
        for (topic, partition), offset in offsets.items():
            if offset >= until.get(partition, sys.maxsize):
                held[self].append(f"{member.group} {topic}:{partition}")

    async def committing(self: TransactionalProducer) -> None:
        # Not those of other producers: they have yet to reach their end
        if self in held:
            for name in sorted(held[self]):
                print(f"{HELD}{name}", flush=True)
            await asyncio.Event().wait()
        await commit(self)

    work = PipelineWorker._work  # noqa: SLF001 # the fault is injected where it happens

    async def working(self: PipelineWorker) -> None:
        """Begin when all input is there: an instance's transaction then has all of it."""
        if set(until) <= {number for _, number in self._fetcher.waiting()}:
            await work(self)
        else:
            await asyncio.sleep(LOOK_S)

    patched_worker: Any = PipelineWorker
    patched_worker._work = working  # noqa: SLF001 # likewise
    patched: Any = TransactionalProducer
    patched.send_offsets, patched.commit = sending, committing


if __name__ == "__main__":
    name, ends = sys.argv[1:]
    hold({int(partition): end for partition, end in json.loads(ends).items()})
    sys.argv = [f"services.{name}"]
    runpy.run_module(f"services.{name}", run_name="__main__", alter_sys=True)
