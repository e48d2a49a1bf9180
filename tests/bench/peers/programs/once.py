"""This project's runtime on the peers' work: one hop with its state, fencing, metrics and dead letters."""

import os
import sys
from contextlib import AsyncExitStack

from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.partitions import murmur2
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import RuntimeSettings
from tests.bench.peers.programs.work import Job, handle, job, report_first
from tests.partitions import PARTITIONS


class Hop:
    """One input partition's work, without a state of its own."""

    reported = False  # of any partition

    def __init__(self, work: Job) -> None:
        self.store = Stores()
        self._work = work
        self._partition_of: dict[bytes, int] = {}

    def process(self, record: Record) -> list[Output]:
        if not Hop.reported:
            Hop.reported = True
            report_first()
        out = handle(record.value or b"")
        if out is None:
            return [record.output(self._work.dead_letters, record.key, record.value)]
        key, value = out
        partition = self._partition_of.get(key)
        if partition is None:
            partition = self._partition_of[key] = (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        return [record.output(self._work.sink, key, value, partition=partition)]


def main(work: Job, changelog: str) -> int:
    """Work until SIGTERM, and return the exit code."""

    async def build(_settings: RuntimeSettings, _stack: AsyncExitStack) -> Pipeline:
        return Pipeline(
            service=work.group,
            topic=work.source,
            changelog=changelog,
            outputs=(work.sink, work.dead_letters),
            handler=lambda _: Hop(work),
        )

    return run_service(work.group, RuntimeSettings, build, [work.source, work.sink, work.dead_letters, changelog])


if __name__ == "__main__":
    sys.exit(main(job(), os.environ["CHANGELOG"]))
