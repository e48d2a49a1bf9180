"""Consume, transform, produce on this project's runtime: a handler without a state of its own."""

import sys
from contextlib import AsyncExitStack

from deploy.drills.clients.job import Job, partition_of
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import RuntimeSettings


class Hop:
    """One input partition's work."""

    def __init__(self, job: Job) -> None:
        self.store = Stores()
        self._job = job

    def process(self, record: Record) -> list[Output]:
        value = record.value or b""
        return [record.output(self._job.sink, record.key, value, partition=partition_of(value))]


def main(job: Job) -> int:
    """Work until SIGTERM, and return the exit code."""

    async def build(_settings: RuntimeSettings, _stack: AsyncExitStack) -> Pipeline:
        return Pipeline(
            service=job.group,
            topic=job.source,
            changelog=job.changelog,
            outputs=(job.sink,),
            handler=lambda _: Hop(job),
        )

    return run_service(job.group, RuntimeSettings, build, [job.source, job.sink, job.changelog])


if __name__ == "__main__":
    sys.exit(main(Job.from_environment()))
