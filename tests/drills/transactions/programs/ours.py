"""This project's runtime, with a handler without a state of its own."""

import os
import sys
from contextlib import AsyncExitStack

from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import RuntimeSettings
from tests.drills.transactions.programs.job import Job, job, partition_of


class Hop:
    """One input partition's work."""

    def __init__(self, work: Job) -> None:
        self.store = Stores()
        self._work = work

    def process(self, record: Record) -> list[Output]:
        value = record.value or b""
        return [record.output(self._work.sink, record.key, value, partition=partition_of(value))]


def main(work: Job, changelog: str) -> int:
    """Work until SIGTERM, and return the exit code."""

    async def build(_settings: RuntimeSettings, _stack: AsyncExitStack) -> Pipeline:
        return Pipeline(
            service=work.group,
            topic=work.source,
            changelog=changelog,
            outputs=(work.sink,),
            handler=lambda _: Hop(work),
        )

    return run_service(work.group, RuntimeSettings, build, [work.source, work.sink, changelog])


if __name__ == "__main__":
    sys.exit(main(job(), os.environ["CHANGELOG"]))
