"""The project's runtime in this process: a service that writes copies of each record of a topic to another one.

In this process, its metrics can be read, and its requests go through a drill's proxy.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.drills.clients.raw import values_of
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import Runtime
from shared.settings import RuntimeSettings, load
from shared.telemetry.server import Health


class Copies:
    """The handler: `count` outputs for a record, each with its number in front and filled up to `size` bytes."""

    def __init__(self, sink: str, count: int, size: int) -> None:
        self.store = Stores()
        self._sink = sink
        self._count = count
        self._size = size

    def process(self, record: Record) -> list[Output]:
        """Return the outputs of one record."""
        value = record.value or b""
        return [
            record.output(self._sink, record.key, output_of(value, number, self._size)) for number in range(self._count)
        ]


def output_of(value: bytes, number: int, size: int = 0) -> bytes:
    """Return the output of that number for an input value."""
    return (b"%d of " % number + value).ljust(size, b".")


@asynccontextmanager
async def copying(
    stage: Stage, bootstrap_servers: str, source: str, sink: str, *, count: int = 1, size: int = 0
) -> AsyncIterator[None]:
    """Run the service while the context is entered; its name is the stage's, its transactional.id `<name>-0`.

    Raises:
        RuntimeError: on leaving, when it has ended by itself, or not with exit code 0.
    """
    changelog = await stage.topic(cleanup_policy="compact")
    settings = load(
        RuntimeSettings,
        {"ONCE_BOOTSTRAP_SERVERS": bootstrap_servers, "ONCE_PARTITIONS": "1", "ONCE_TRANSACTION_TIMEOUT_MS": "30000"},
    )
    pipeline = Pipeline(
        service=stage.name,
        topic=source,
        changelog=changelog,
        outputs=(sink,),
        handler=lambda _partition: Copies(sink, count, size),
    )
    stop = asyncio.Event()
    topics = [source, sink, changelog]
    running = asyncio.create_task(Runtime(pipeline, settings, topics, Health()).run(stop))
    try:
        yield
        if running.done():
            raise RuntimeError(f"the service ended by itself with exit code {running.result()}")
    finally:
        stop.set()
        await asyncio.wait({running})
    if running.result() != 0:
        raise RuntimeError(f"the service ended with exit code {running.result()}")


async def until_written(stage: Stage, sink: str, count: int) -> None:
    """Wait until a topic has so many committed records."""

    async def written() -> bool:
        return len(await values_of(stage.access, sink)) >= count

    await eventually(written, f"{count} committed records in {sink}")
