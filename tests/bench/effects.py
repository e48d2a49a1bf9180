"""Effects per second through the outbox to a webhook on this machine, and their cost."""

import asyncio
import time
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from tests.bench.gauges import cpu_s, high_water_mb
from tests.outbox import World, assert_i11, world_over
from tests.redis import client_at, measure_bytes_per_effect

REMEMBERED = 100_000


async def measure_effects(kafka: LocalKafka, directory: Path, count: int) -> dict[str, object]:
    """Make `count` effects, requested before the outbox starts; then check I11 at the receiver."""
    with world_over(kafka.bootstrap_servers, directory) as world:
        requests = await world.request(count, world.receiver.url)
        outbox = world.outbox(OUTBOX_BATCH_MAX="200", OUTBOX_CALL_TIMEOUT_S="5", OUTBOX_LEASE_S="30").start()
        await asyncio.to_thread(outbox.wait_ready)
        pids: dict[str, list[int | None]] = {
            "outbox": [outbox.process.pid],
            "redis": [world.redis.process.pid],
            "receiver": [world.receiver.process.pid],
            "brokers": list(kafka.pids),
        }
        before = {name: sum(cpu_s(pid) for pid in group) for name, group in pids.items()}
        made_before, begun = world.receiver.counts().distinct, time.monotonic()
        await _made(world, count)
        made, seconds = count - made_before, time.monotonic() - begun
        used = {name: sum(cpu_s(pid) for pid in group) - before[name] for name, group in pids.items()}
        result: dict[str, object] = {
            "effects": made,
            "seconds": round(seconds, 2),
            "effects_per_s": round(made / seconds),
            "cpu_s_per_1000": {name: round(value * 1000 / made, 3) for name, value in used.items()},
            "rss_mb_max": round(high_water_mb(outbox.process.pid)),
        }
        assert_i11(requests, await world.settled(requests, 60), world.webhook_effects())
        outbox.process.terminate()
        client = client_at(world.redis.url, 10.0)
        bytes_each = await measure_bytes_per_effect(client, REMEMBERED)
        await client.aclose()
        return result | {"redis_mb_per_million": round(bytes_each, 1)}


async def _made(world: World, count: int) -> None:
    while world.receiver.counts().distinct < count:
        await asyncio.sleep(0.1)
