"""The brokers of the comparison, their topics, the peers' input, and the check of the peers' output."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Record
from shared.events import catalogue
from shared.kafka.admin import scratch
from shared.kafka.admin import topics as admin
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.bench.gauges import say
from tests.bench.peers.programs.work import CURRENCIES
from tests.partitions import PARTITIONS, partition_for

ACCOUNTS = 1000


@asynccontextmanager
async def brokers(directory: Path) -> AsyncIterator[LocalKafka]:
    """Three brokers with Kafka's default compilers; killed at the end."""
    say("starting three brokers")
    kafka = LocalKafka(directory, optimise=True)
    kafka.start()
    try:
        await asyncio.to_thread(kafka.wait_ready, 120)
        yield kafka
    finally:
        kafka.kill()


async def create(kafka: LocalKafka, names: list[str]) -> None:
    """Create topics with the catalogue's partitions and replicas."""
    async with Cluster(kafka.bootstrap_servers) as cluster:
        for name in names:
            await scratch.create_topic(cluster, name, PARTITIONS)


async def delete(kafka: LocalKafka, wanted: Callable[[str], bool]) -> None:
    """Delete topics by name; their groups' offsets go with them. Return when no broker lists them."""
    async with Cluster(kafka.bootstrap_servers) as cluster:
        names = sorted(filter(wanted, await admin._describe_any(cluster)))
        for name in names:
            await scratch._delete_topic(cluster, name)
        for node_id in cluster.brokers:
            while (await admin._describe(cluster, node_id)).keys() & set(names):
                await asyncio.sleep(0.1)


async def recreate_catalogue(kafka: LocalKafka) -> None:
    """Empty all of the project's topics."""
    await delete(kafka, {topic.name for topic in catalogue.TOPICS}.__contains__)
    await admin.ensure_topics(kafka.bootstrap_servers, PARTITIONS)


def events(count: int, seed: int = 42) -> Iterator[tuple[str, bytes]]:
    """Account and value of the peers' input records, one in a thousand of them bad."""
    chance = random.Random(seed)
    currencies = sorted(CURRENCIES)
    for number in range(count):
        account = f"A{chance.randrange(ACCOUNTS):04d}"
        event: dict[str, object] = {
            "event_id": f"{chance.getrandbits(128):032x}",
            "account_from": account,
            "account_to": f"A{chance.randrange(ACCOUNTS):04d}",
            "amount_minor": chance.randrange(1, 5_000_000),
            "currency": chance.choice(currencies),
            "occurred_at": f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:{number % 60:02d}:00.{number % 1000:03d}Z",
            "schema_version": 1,
            "memo": f"payment ref {chance.getrandbits(64):016x}",
        }
        if chance.random() < 0.001:
            field, value = (("amount_minor", -1), ("account_to", ""), ("currency", "XXX"))[number % 3]
            event[field] = value
        yield account, msgspec.json.encode(event)


async def load(kafka: LocalKafka, topic: str, count: int) -> None:
    """Create the peers' input."""
    say(f"loading {count} records into {topic}")
    await create(kafka, [topic])
    async with IdempotentWriter(kafka.bootstrap_servers) as writer:
        for account, value in events(count):
            await writer.write(topic, partition_for(account), account.encode(), value)


class Identity(msgspec.Struct):
    event_id: str
    fee: int = 0
    amount_minor: int = 0


async def check_peer(kafka: LocalKafka, sink: str, dead_letters: str, count: int) -> None:
    """Check that each input record has one committed output, with its fee; AssertionError if not."""
    decode = msgspec.json.Decoder(Identity).decode
    seen: set[str] = set()
    found = {sink: 0, dead_letters: 0}
    wrong = 0

    def take(topic: str, _partition: int, records: list[Record]) -> None:
        nonlocal wrong
        found[topic] += len(records)
        for record in records:
            event = decode(record.value or b"")
            seen.add(event.event_id)
            wrong += topic == sink and event.fee != event.amount_minor * 29 // 10000 + 30

    await read_topics(kafka.bootstrap_servers, list(found), take)
    summed = sum(found.values())
    outcome = {"missing": count - len(seen), "repeated": summed - len(seen), "wrong": wrong}
    assert not any(outcome.values()), outcome
    assert found[dead_letters], "the input has bad records"


async def visible(cluster: Cluster, targets: list[Target]) -> int:
    """The sum of the last stable offsets."""
    return sum((await cluster.offsets(targets, -1, committed=True)).values())
