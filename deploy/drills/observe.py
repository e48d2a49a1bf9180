"""Samples of the brokers' offsets while a drill runs: throughput, log end, last stable offset, and consumer lag.

A look costs each broker three small requests. Sums are over a topic's partitions. A sum of which a part is unknown is
left out, so a line has a gap where a broker did not answer. Throughput counts offsets, so transaction markers count.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from deploy.drills.drill import Sample
from shared.eos.open_transactions import Offsets
from shared.kafka.admin.groups import Groups
from shared.kafka.admin.transactions import offsets_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.client.errors import KafkaUnavailableError

EVERY_S: Final = 0.5
ANSWER_S: Final = 0.5

RATE, LAG, END, LSO = "records/s", "lag, records", "log end", "LSO"
"""What lines show; a line's name is one of these, `: `, and a topic or a group."""


def line(what: str, of: str) -> str:
    """Return a line's name."""
    return f"{what}: {of}"


class Look(NamedTuple):
    """What the brokers answered at one moment.

    Attributes:
        at_s: seconds since the drill began.
        offsets: of each partition whose leader answered.
        committed: offsets by group and partition, of each group whose coordinator answered.
    """

    at_s: float
    offsets: Mapping[Target, Offsets]
    committed: Mapping[str, Mapping[Target, int]]


def sample(
    look: Look,
    before: Look | None,
    topics: Collection[str],
    groups: Mapping[str, str],
    partitions: Mapping[str, int],
) -> Sample:
    """Return the sample of a look. Pure.

    Args:
        before: the look before, for rates.
        topics: whose throughput, log end and LSO are wanted.
        groups: consumer groups, each with its input topic, whose lag is wanted.
        partitions: how many partitions each topic has.
    """
    values: dict[str, float] = {}
    for topic in topics:
        offsets = _sum(look, topic, partitions)
        if offsets is None:
            continue
        values[line(LSO, topic)], values[line(END, topic)] = offsets
        past = None if before is None else _sum(before, topic, partitions)
        if before is not None and past is not None:
            values[line(RATE, topic)] = round((offsets[1] - past[1]) / (look.at_s - before.at_s), 1)
    for group, topic in groups.items():
        offsets = _sum(look, topic, partitions)
        if offsets is not None and group in look.committed:
            passed = sum(offset for target, offset in look.committed[group].items() if target[0] == topic)
            # The group's answer may be younger than the log's end: a lag below 0 is none
            values[line(LAG, group)] = max(offsets[1] - passed, 0)
    return Sample(look.at_s, values)


def _sum(look: Look, topic: str, partitions: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the last stable offsets and the ends of a topic's partitions; None while one is unknown."""
    found = [offsets for (name, _), offsets in look.offsets.items() if name == topic]
    if len(found) < partitions[topic]:
        return None
    return sum(one.stable for one in found), sum(one.end for one in found)


@asynccontextmanager
async def observing(
    access: Bootstrap, topics: Iterable[str], groups: Mapping[str, str], now_s: Callable[[], float], into: list[Sample]
) -> AsyncIterator[None]:
    """Append samples to `into` until the context is left.

    Args:
        topics: which exist.
        groups: consumer groups, each with its input topic.
        now_s: returns the seconds since the drill began.
    """
    async with Brokers(access, client_id="drill-observer", answer_s=ANSWER_S) as brokers:
        named = list(topics)
        targets = list((await brokers.view({*named, *groups.values()})).leaders)
        looking = asyncio.create_task(_look(brokers, targets, named, groups, now_s, into))
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking


async def _look(
    brokers: Brokers,
    targets: list[Target],
    topics: Collection[str],
    groups: Mapping[str, str],
    now_s: Callable[[], float],
    into: list[Sample],
) -> None:
    coordinators = Groups(brokers)
    before: Look | None = None
    partitions = Counter(topic for topic, _ in targets)
    while True:
        at_s = now_s()
        with suppress(KafkaUnavailableError):  # no broker answers: the lines have a gap
            offsets, _ = await offsets_of(brokers, targets)
            asked = (await brokers.view([])).brokers if groups else {}
            committed, _ = await coordinators.committed(groups, asked)
            look = Look(at_s, offsets, committed)
            into.append(sample(look, before, topics, groups, partitions))
            before = look
        await asyncio.sleep(max(EVERY_S - (now_s() - at_s), 0.05))
