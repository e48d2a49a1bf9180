"""`make bench`: throughput, latency, CPU and memory of the pipeline, three brokers on the same machine.

Not a test: figures depend on the machine. Progress goes to stderr, one JSON object to stdout.
"""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import uvloop

from deploy.local.kafka.cluster import LocalKafka
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.headers import ORIGIN, header
from shared.events.validation import key_of
from shared.kafka.admin.groups import wait_drained
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.consumer import Tail
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import group_offsets
from tests.bench.effects import measure_effects
from tests.bench.gauges import cpu_s, high_water_mb, say
from tests.bench.http import measure_http
from tests.bench.overhead import measure_overhead
from tests.bench.recovery import measure_recovery, measure_rest
from tests.bench.spark import measure_spark
from tests.bench.takeovers import measure_takeovers
from tests.bench.view import measure_view
from tests.bench.window import measure_window
from tests.harness import Service, eventually
from tests.partitions import PARTITIONS
from tests.payments import payments, with_fields
from tests.proof import assert_exactly_once, send_raw, verdict

SERVICES = ("ingest", "transform", "ledger")
OVERHEAD_PAYMENTS = 100_000


async def throughput(kafka: LocalKafka, directory: Path, count: int) -> dict[str, object]:
    """Payments per second from raw to postings: the input is there before the services start."""
    say(f"loading {count} payments into payments.raw")
    begun = time.monotonic()
    await send_raw(kafka.bootstrap_servers, payments("bench", count, accounts=5000))
    load_s = time.monotonic() - begun
    running = {name: Service(name, kafka.bootstrap_servers, directory).start() for name in SERVICES}
    try:
        first = await _first_commit(kafka.bootstrap_servers)
        broker_cpu = sum(cpu_s(pid) for pid in kafka.pids)
        say("draining")
        await wait_drained(kafka.bootstrap_servers, deadline_s=600)
        seconds = time.monotonic() - first
        scale = 100_000 / count
        used = {name: cpu_s(service.process.pid) for name, service in running.items()}
        result: dict[str, object] = {
            "payments": count,
            "seconds": round(seconds, 2),
            "payments_per_s": round(count / seconds),
            "load_per_s": round(count / load_s),
            "cpu_s_per_100k": {name: round(value * scale, 2) for name, value in used.items()},
            "cpu_s_per_100k_services": round(sum(used.values()) * scale, 2),
            "cpu_s_per_100k_brokers": round((sum(cpu_s(pid) for pid in kafka.pids) - broker_cpu) * scale, 2),
            "rss_mb_max": {name: round(high_water_mb(service.process.pid)) for name, service in running.items()},
        }
        result["latency_ms_at_1000_per_s"] = await latency(kafka.bootstrap_servers)
        await wait_drained(kafka.bootstrap_servers, deadline_s=60)
    finally:
        for service in running.values():
            service.process.terminate()
    say("verifying")
    assert_exactly_once(verdict(kafka.bootstrap_servers))
    return result


async def _first_commit(bootstrap_servers: str) -> float:
    """When the first transaction was committed, so that start-up does not count."""

    async def begun() -> bool:
        return bool(await group_offsets(bootstrap_servers, "ingest", catalogue.PAYMENTS_RAW))

    await eventually(begun, "the first commit", 60)
    return time.monotonic()


async def latency(bootstrap_servers: str, rate: int = 1000, warm_s: int = 5, seconds: int = 20) -> dict[str, float]:
    """Milliseconds from sending the raw record until a read_committed reader has its debit posting."""
    say(f"latency at {rate}/s for {seconds} s")
    sent: dict[bytes, float] = {}
    taken: list[float] = []
    counted_from = time.monotonic() + warm_s
    async with (
        Tail(bootstrap_servers, catalogue.LEDGER_POSTINGS) as tail,
        IdempotentWriter(bootstrap_servers) as writer,
    ):
        source = payments(f"latency-{time.time_ns()}", rate * (warm_s + seconds), accounts=5000)
        sender = asyncio.create_task(_steady(writer, source, rate, sent))
        end = time.monotonic() + warm_s + seconds + 3
        while time.monotonic() < end:
            for record in await tail.poll(50):
                identity = record.value or b""
                if b'"leg":"debit"' not in identity:
                    continue
                begun = sent.pop(header(record.headers, ORIGIN) or b"", None)
                if begun is not None and begun > counted_from:
                    taken.append((time.monotonic() - begun) * 1000)
        await sender
    taken.sort()
    return {name: round(taken[int(len(taken) * share)], 1) for name, share in (("p50", 0.5), ("p99", 0.99))} | {
        "samples": len(taken)
    }


async def _steady(writer: IdempotentWriter, source: Iterator[bytes], rate: int, sent: dict[bytes, float]) -> None:
    """Send at a steady rate; note when each record left, by the coordinates that it got."""
    begun = time.monotonic()
    pending: set[asyncio.Task[None]] = set()
    for number, value in enumerate(source):
        await asyncio.sleep(max(begun + number / rate - time.monotonic(), 0))
        task = asyncio.create_task(_one(writer, with_fields(value, reference=str(number)), sent))
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)


async def _one(writer: IdempotentWriter, value: bytes, sent: dict[bytes, float]) -> None:
    begun = time.monotonic()
    key, partition = key_of(value, PARTITIONS)
    at = await writer.send(catalogue.PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
    sent[b"%b:%d:%d" % (at.topic.encode(), at.partition, at.offset)] = begun


async def measure(directory: Path, count: int, effects: int, pairs: int) -> dict[str, object]:
    """Measure the services on a cluster of their own."""
    kafka = LocalKafka(directory / "kafka")
    say("starting three brokers")
    kafka.start()
    try:
        kafka.wait_ready(120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        result = await throughput(kafka, directory, count)
        if effects:
            say(f"{effects} effects to a webhook on this machine")
            result["effects"] = await measure_effects(kafka, directory / "effects", effects)
        if pairs:
            result["metrics_cost"] = await measure_overhead(kafka, directory / "overhead", pairs, OVERHEAD_PAYMENTS)
        return result
    finally:
        kafka.stop()


async def measure_interfaces(directory: Path, viewed: int, http_s: float) -> dict[str, object]:
    """Measure the view and the gateway on a new cluster with empty topics."""
    kafka = LocalKafka(directory / "kafka")
    say("starting three brokers")
    kafka.start()
    try:
        kafka.wait_ready(120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        result: dict[str, object] = {}
        if viewed:
            result["view"] = await measure_view(kafka, directory / "view", viewed)
        if http_s:
            result["http"] = await measure_http(kafka, directory / "http", http_s)
        return result
    finally:
        kafka.stop()


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--payments", type=int, default=300_000, help="through the services; 0 leaves these out")
@click.option("--effects", type=int, default=20_000, help="through the outbox; 0 leaves it out")
@click.option("--pairs", type=int, default=5, help="of runs with and without metrics; 0 leaves them out")
@click.option("--reconciled", type=int, default=2_000_000, help="payments through Spark; 0 leaves it out")
@click.option("--viewed", type=int, default=60_000, help="payments into the view; 0 leaves it out")
@click.option("--http", "http_s", type=float, default=20, help="seconds of payments over HTTP; 0 leaves them out")
@click.option("--window", type=int, default=100_000, help="identities remembered per partition; 0 leaves it out")
@click.option("--takeovers", type=int, default=10, help="of each kind; 0 leaves them out")
@click.option("--restarts", type=int, default=20, help="faults under load, of each kind; 0 leaves them out")
@click.option("--rest/--no-rest", default=True, help="the processor at rest, of the brokers and of the stack")
def main(
    payments: int,
    effects: int,
    pairs: int,
    reconciled: int,
    viewed: int,
    http_s: float,
    window: int,
    takeovers: int,
    restarts: int,
    rest: bool,
) -> None:
    """Run the benchmark."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers are killed, and new topics have no leader yet
    with tempfile.TemporaryDirectory(prefix="once-bench-") as name:
        directory = Path(name)
        result = uvloop.run(measure(directory, payments, effects, pairs)) if payments else {}
        if takeovers:
            result["takeovers"] = uvloop.run(measure_takeovers(directory / "takeovers", takeovers))
        if restarts:
            result["recovery"] = uvloop.run(measure_recovery(directory / "recovery", restarts, max(restarts // 4, 1)))
        if rest:
            result["at_rest_cores"] = measure_rest(directory / "rest")
        if viewed or http_s:
            result |= uvloop.run(measure_interfaces(directory / "interfaces", viewed, http_s))
        if window:
            result["window"] = uvloop.run(measure_window(directory / "window", window))
        if reconciled:
            result["spark"] = measure_spark(directory / "spark", reconciled)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(prog_name="make bench")
