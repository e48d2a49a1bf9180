"""This project's runtime on the peers' work: one hop with its state, fencing, metrics and dead letters."""

import os
import sys
from contextlib import AsyncExitStack

from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.partitions import PARTITIONS, murmur2
from shared.kafka.runtime.runtime import run_service
from shared.kafka.runtime.scope import Pipeline
from shared.settings import RuntimeSettings
from tests.bench.peers.programs.work import Job, handle, job, report_first


class Hop:
    """One input partition's work, without a state of its own."""

    reported = False  # of any partition

    def __init__(self, work: Job, partition: int) -> None:
        self.store = Stores()
        self._work = work
        self._partition = partition
        self._partition_of: dict[bytes, int] = {}

    def process(self, record: Record) -> list[Output]:
        if not Hop.reported:
            Hop.reported = True
            report_first()
        out = handle(record.value or b"")
        if out is None:
            return [Output(self._work.dead_letters, self._partition, record.key, record.value, ())]
        key, value = out
        partition = self._partition_of.get(key)
        if partition is None:
            partition = self._partition_of[key] = (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        return [Output(self._work.sink, partition, key, value, ())]


def main(work: Job, changelog: str) -> int:
    """Work until SIGTERM, and return the exit code."""

    async def build(_settings: RuntimeSettings, _stack: AsyncExitStack) -> Pipeline:
        return Pipeline(
            service=work.group,
            topic=work.source,
            changelog=changelog,
            hop=work.sink,
            handler=lambda partition: Hop(work, partition),
        )

    return run_service(work.group, RuntimeSettings, build, [work.source, work.sink, work.dead_letters, changelog])


if __name__ == "__main__":
    sys.exit(main(job(), os.environ["CHANGELOG"]))
