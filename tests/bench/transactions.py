"""A transaction by each protocol: `python -m tests.bench.transactions`. Three brokers, one producer.

A transaction has one record for each partition and an offset. In the mode `leaders`, partitions are added by their
leaders and by the group's coordinator, as the Java client has it with version 2 of the protocol (KIP-890). In others
they are added by requests of their own. The modes take turns. One JSON object goes to stdout: by number of partitions
and mode, median and 99th percentile of milliseconds per transaction, and the brokers' CPU in milliseconds.
"""

import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import uvloop

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.bench.gauges import cpu_s, say
from tests.bench.peers.cluster import brokers
from tests.partitions import PARTITIONS

TOPICS = (catalogue.PAYMENTS_ACCEPTED, catalogue.LEDGER_POSTINGS, catalogue.LEDGER_TRANSFERS)
TRANSACTIONS = 300
ROUNDS = 3
WRITTEN = (1, 3, 9, 18)
"""Partitions of a transaction."""


class AddedByLeaders(TransactionalProducer):
    """A producer that adds no partition by itself."""

    async def _add(self, what: Iterable[Target | str], _: Callable[[int], Awaitable[None]]) -> None:
        self._touched = True
        self._added.update(what)


def producer(kafka: LocalKafka, mode: str, name: str) -> TransactionalProducer:
    """Make a producer of a mode."""
    kind = AddedByLeaders if mode == "leaders" else TransactionalProducer
    version = 1 if mode == "v1" else 2
    return kind(kafka.bootstrap_servers, name, 10_000, CrashPoints("", lambda _: None), version_max=version)


async def measure(kafka: LocalKafka, mode: str, partitions: int, round_: int) -> dict[str, float]:
    """Do the transactions one after the other."""
    targets = [(topic, number) for number in range(6) for topic in TOPICS][:partitions]
    one = producer(kafka, mode, f"{mode}-{partitions}-{round_}")
    await one.init(30)
    taken = []
    before = sum(map(cpu_s, kafka.pids))
    for number in range(TRANSACTIONS):
        begun_s = time.perf_counter()
        await one.begin()
        one.append((Output(topic, part, b"key", b"v" * 300, ()) for topic, part in targets), time.time_ns() // 10**6)
        await one.flush()
        await one.send_offsets(GroupMember("bench"), {(catalogue.PAYMENTS_RAW, 0): number})
        await one.commit()
        taken.append((time.perf_counter() - begun_s) * 1000)
    used = sum(map(cpu_s, kafka.pids)) - before
    await one.discard()
    taken.sort()
    return {
        "p50_ms": round(taken[len(taken) // 2], 2),
        "p99_ms": round(taken[len(taken) * 99 // 100], 2),
        "broker_cpu_ms": round(1000 * used / TRANSACTIONS, 2),
    }


async def main() -> dict[str, dict[str, dict[str, float]]]:
    """Warm up, and measure in turns; the last round counts."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="once-transactions-") as name:
        async with brokers(Path(name)) as kafka:
            await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
            for round_ in range(ROUNDS):
                for partitions in WRITTEN:
                    for mode in ("v1", "v2", "leaders"):
                        figures = await measure(kafka, mode, partitions, round_)
                        say(f"{partitions} partitions, {mode}: {figures}")
                        found.setdefault(str(partitions), {})[mode] = figures
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main()), indent=2))
