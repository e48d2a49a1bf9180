"""The records that postings were made from, backwards to the raw records.

Each record names the one that it was made from: ledger.postings <- ledger.transfers <- payments.accepted <-
payments.raw; a credit leg has one more record of ledger.transfers before it. Invariant: each step is one bounded fetch
of one committed record at known coordinates, so the cost does not grow with the topics. Only a `Step` of a record is
returned.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW, TOPICS
from shared.events.headers import SOURCE, Coordinates, header
from shared.http.monitor import STEPS_MAX, Step, Steps
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import unavailable
from shared.kafka.client.reader import record_at
from shared.kafka.lineage.trace import describe

DEADLINE_S: Final = 5.0
_KNOWN: Final = frozenset(topic.name for topic in TOPICS)


async def steps_of(
    bootstrap_servers: Bootstrap, postings: Iterable[Coordinates], deadline_s: float = DEADLINE_S
) -> Steps:
    """Follow postings back to the raw records; KafkaUnavailableError if that takes longer than `deadline_s`."""
    steps: dict[Coordinates, Step] = {}
    try:
        async with asyncio.timeout(deadline_s), Cluster(bootstrap_servers, deadline_s=deadline_s) as cluster:
            for at in postings:
                await _follow(cluster, at, steps)
    except TimeoutError as error:
        raise unavailable(bootstrap_servers, f"the way was not found out within {deadline_s:g} s") from error
    return Steps(tuple(steps.values()))


async def _follow(cluster: Cluster, at: Coordinates, steps: dict[Coordinates, Step]) -> None:
    """Add a record and all before it, up to one that is known already: both legs have one beginning."""
    for _ in range(STEPS_MAX):
        if at in steps:
            return
        record = await record_at(cluster, at) if at.topic in _KNOWN else None
        step = step_of(at, record)
        steps[at] = step
        if step.source is None:
            return
        at = Coordinates.decode(step.source.encode())  # written by a service of this project, in a committed record


def step_of(at: Coordinates, record: Record | None) -> Step:
    """Return what is shown of a record, or of one that is missing. Pure."""
    if record is None:
        return Step("not there", at.topic, at.partition, at.offset, str(at), None, None, found=False)
    source = None if at.topic == PAYMENTS_RAW else header(record.headers, SOURCE)
    return Step(
        describe(record),
        at.topic,
        at.partition,
        at.offset,
        str(at),
        record.timestamp_ms,
        None if source is None else source.decode(),
        found=True,
    )
