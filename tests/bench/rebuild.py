"""`python -m tests.bench.rebuild`: Redis rebuilt from effects.results, against `once verify` on the same brokers.

Not a test: figures depend on the machine. Progress goes to stderr, one JSON object to stdout. Both are in offsets per
second: those of all topics that `once verify` reads, and those of effects.results that a new owner reads.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import click
import uvloop

from deploy.local.kafka.cluster import LocalKafka
from deploy.verification import verify_cluster
from services.outbox.limits import EFFECTS_PER_BUCKET
from services.outbox.marks import Mark
from services.outbox.trust import results_since
from shared.events.catalogue import EFFECTS_RESULTS
from shared.events.effects import EffectResult, EffectState, encode_result
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.idempotent import IdempotentWriter
from tests.bench.gauges import cpu_s, say
from tests.bulk import bulk_now, write_bulk
from tests.partitions import PARTITIONS
from tests.redis import client_at, now_ms, owner, random_id, running_redis

REDIS_TIMEOUT_S = 10.0
REDIS_MAXMEMORY = "2gb"
FLUSH_EVERY = 20_000


async def measure_rebuild(directory: Path, effects: int, payments: int) -> dict[str, object]:
    """Verify `payments` payments, then rebuild `effects` effects into an empty Redis.

    Args:
        directory: for brokers and Redis.
        effects: sent, spread over all partitions.
        payments: with their records in all topics.

    Returns:
        Offsets per second of both and their ratio; bytes and CPU seconds of Redis.
    """
    kafka = LocalKafka(directory / "kafka")
    say("starting three brokers")
    kafka.start()
    try:
        await asyncio.to_thread(kafka.wait_ready, 120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        say(f"records of {payments} payments")
        await write_bulk(kafka.bootstrap_servers, bulk_now((payments,)))
        say("verifying")
        begun_s = time.monotonic()
        verdict = await verify_cluster(kafka.bootstrap_servers, wait=False)
        verified = sum(map(sum, verdict.end_offsets.values())), time.monotonic() - begun_s
        say(f"results of {effects} effects")
        await _fill(kafka.bootstrap_servers, effects)
        return await _rebuild(kafka.bootstrap_servers, directory, effects, verified)
    finally:
        kafka.stop()


async def _fill(bootstrap_servers: str, effects: int) -> None:
    async with IdempotentWriter(bootstrap_servers) as writer:
        for number in range(effects):
            result = EffectResult(random_id(number), EffectState.SENT, now_ms(), 1, detail="200 OK")
            key = result.effect_id.encode()
            await writer.write(EFFECTS_RESULTS, number % PARTITIONS, key, encode_result(result))
            if number % FLUSH_EVERY == 0:
                await writer.flush()
        await writer.flush()


async def _rebuild(
    bootstrap_servers: str, directory: Path, effects: int, verified: tuple[int, float]
) -> dict[str, object]:
    passed = 0

    async def counted(partition: int) -> AsyncIterator[tuple[str, Mark]]:
        nonlocal passed
        async for item in results_since(bootstrap_servers, partition, 0):
            passed += 1
            yield item

    with running_redis(directory / "redis") as redis:
        client = client_at(redis.url, REDIS_TIMEOUT_S)
        await client.config_set("maxmemory", REDIS_MAXMEMORY)
        before = (await client.info("memory"))["used_memory"]
        say("rebuilding")
        begun_s = time.monotonic()
        for partition in range(PARTITIONS):
            buckets = -(-effects // PARTITIONS // EFFECTS_PER_BUCKET)
            await owner(client, 1, installation=f"p{partition}", buckets=buckets, timeout_s=REDIS_TIMEOUT_S).rebuild(
                counted(partition)
            )
        seconds = time.monotonic() - begun_s
        after = (await client.info("memory"))["used_memory"]
        await client.aclose()
        redis_s = cpu_s(redis.process.pid)
    offsets, verify_s = verified
    return {
        "effects": effects,
        "verify_offsets": offsets,
        "verify_offsets_per_s": round(offsets / verify_s),
        "rebuild_offsets": passed,
        "rebuild_offsets_per_s": round(passed / seconds),
        "rebuild_to_verify": round(passed / seconds / (offsets / verify_s), 2),
        "bytes_per_effect": round((after - before) / effects, 1),
        "redis_cpu_s": round(redis_s, 1),
    }


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--effects", type=int, default=1_000_000, help="results in effects.results")
@click.option("--payments", type=int, default=50_000, help="to verify")
def main(effects: int, payments: int) -> None:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory(prefix="once-bench-") as name:
        print(json.dumps(uvloop.run(measure_rebuild(Path(name), effects, payments)), indent=2))


if __name__ == "__main__":
    main(prog_name="python -m tests.bench.rebuild")
