"""A service whose scopes stop for ever between the offsets and EndTxn; `tests.torn` runs and kills it.

It is the shipped service, except that a transaction which reaches the given input offset is never ended.
"""

import asyncio
import json
import runpy
import sys
from typing import Any

from shared.kafka.runtime.producer import TransactionalProducer

HELD = "transaction held: "
"""Its output, followed by the transactional.id."""


def hold(until: dict[int, int]) -> None:
    """Never end a transaction that commits an offset at or beyond the one given for its input partition."""
    send_offsets, commit = TransactionalProducer.send_offsets, TransactionalProducer.commit
    held: set[str] = set()

    async def sending(
        self: TransactionalProducer, group: str, offsets: dict[tuple[str, int], int], metadata: str = ""
    ) -> None:
        await send_offsets(self, group, offsets, metadata)
        for (_, partition), offset in offsets.items():
            if offset >= until.get(partition, sys.maxsize):
                held.add(self.transactional_id)

    async def committing(self: TransactionalProducer) -> None:
        if self.transactional_id in held:
            print(f"{HELD}{self.transactional_id}", flush=True)
            await asyncio.Event().wait()
        await commit(self)

    patched: Any = TransactionalProducer
    patched.send_offsets, patched.commit = sending, committing


if __name__ == "__main__":
    name, ends = sys.argv[1:]
    hold({int(partition): end for partition, end in json.loads(ends).items()})
    sys.argv = [f"services.{name}"]
    runpy.run_module(f"services.{name}", run_name="__main__", alter_sys=True)
