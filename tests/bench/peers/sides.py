"""The sides of the comparison: this project's pipeline and hop, and the peers'."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.validation import key_of
from tests.bench.gauges import say
from tests.bench.peers import cluster
from tests.bench.peers.running import Command, Sent, Side
from tests.partitions import PARTITIONS, partition_for
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict

COMMIT_MS = 100  # how long each side keeps a transaction open
ACCOUNTS = 5000  # of the project's payments
_PROGRAMS = "tests.bench.peers.programs"
_PROJECT_HOP = "once"
PYTHON_HOPS = ("confluent", "tuned", _PROJECT_HOP)


def _service(kafka: LocalKafka, *module: str) -> Command:
    (port,) = free_ports(1)
    environment = {
        "ONCE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "ONCE_METRICS_PORT": str(port),
        "ONCE_LOG_LEVEL": "WARNING",
    }
    return Command([sys.executable, "-m", *module], environment, port)


async def pipeline(kafka: LocalKafka, count: int) -> Side:
    """This project's ingest, transform and ledger over new topics, with so many payments in payments.raw."""
    say("emptying the project's topics")
    await cluster.recreate_catalogue(kafka)
    if count:
        say(f"loading {count} payments into payments.raw")
        await send_raw(kafka.bootstrap_servers, payments("bench", count, accounts=ACCOUNTS))

    async def check() -> None:
        result = verdict(kafka.bootstrap_servers)
        assert_exactly_once(result)
        assert result["accepted"] == count, result

    async def close() -> None:
        pass  # the next run empties the topics

    commands = [
        _service(kafka, "services.transform"),
        _service(kafka, "services.ledger"),
        _service(kafka, f"{_PROGRAMS}.first"),
    ]
    return Side("once", commands, catalogue.PAYMENTS_RAW, catalogue.LEDGER_POSTINGS, check, close)


async def peer(
    kafka: LocalKafka, name: str, program: Callable[[str], list[str]], directory: Path, source: str, count: int
) -> Side:
    """A peer over an input of `count` records, with new topics and a new group.

    Args:
        program: by the peer's name, its command line.
    """
    tag = f"{name}-{time.time_ns() // 1_000_000}"
    topics = {key: f"{tag}-{key.lower()}" for key in ("OUT", "DLQ", "VALIDATED", "ENRICHED", "CHANGELOG")}
    await cluster.create(kafka, list(topics.values()))
    environment = {
        **topics,
        "BOOTSTRAP": kafka.bootstrap_servers,
        "IN": source,
        "GROUP": tag,
        "COMMIT_MS": str(COMMIT_MS),
        "STATE_DIR": str(directory / tag),
    }
    command = Command(program(name), environment)
    if name == _PROJECT_HOP:
        service = _service(kafka)
        command = Command(command.argv, {**environment, **service.environment}, service.port)

    async def check() -> None:
        await cluster.check_peer(kafka, topics["OUT"], topics["DLQ"], count)

    async def close() -> None:
        await cluster.delete(kafka, lambda name: name.startswith(tag))

    return Side(name, [command], source, topics["OUT"], check, close)


def python(name: str) -> list[str]:
    """The command line of one of the Python hops."""
    return [sys.executable, "-m", f"{_PROGRAMS}.{name}"]


def java(classpath: str) -> Callable[[str], list[str]]:
    """Command lines of Kafka Streams: `streams` is one hop, `pipe1` three, each with one thread."""
    topologies = {"streams": "Hop", "pipe1": "Pipe"}
    return lambda name: ["java", "-Xmx1g", "-cp", classpath, topologies[name]]


def project_records(count: int) -> Iterator[Sent]:
    """Payments for the latency of the project's pipeline."""
    for number, value in enumerate(payments("latency", count, accounts=ACCOUNTS)):
        key, partition = key_of(value, PARTITIONS)
        assert key is not None
        yield Sent(partition, key, value, f"latency-{number}", BY_OPERATOR)


class _Posting(msgspec.Struct):
    payment_id: str
    leg: str = ""  # a decline has none


_posting: Callable[[bytes], _Posting] = msgspec.json.Decoder(_Posting).decode


def debit_of(record: Record) -> str | None:
    """The payment of a debit posting; None for a credit."""
    posting = _posting(record.value or b"")
    return posting.payment_id if posting.leg == "debit" else None


class _Event(msgspec.Struct):
    event_id: str


_event: Callable[[bytes], _Event] = msgspec.json.Decoder(_Event).decode


def peer_records(count: int) -> Iterator[Sent]:
    """Input records for a peer's latency."""
    for account, value in cluster.events(count, seed=7):
        yield Sent(partition_for(account), account.encode(), value, _event(value).event_id)


def event_of(record: Record) -> str | None:
    """The identity of a peer's posting."""
    return _event(record.value or b"").event_id
