"""The gateway's HTTP interface: payments per CPU second of its process, singly and in batches.

No other service runs. The load comes from another process, whose cost does not count; that of the brokers neither.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

from deploy.local.kafka.cluster import LocalKafka
from tests.bench.gauges import cpu_s, high_water_mb, say
from tests.harness import ROOT, Service
from tests.keys import KEY

CONNECTIONS: Final = 64
BATCH: Final = 500
BATCH_CONNECTIONS: Final = 4
WARM_S: Final = 3.0


async def measure_http(kafka: LocalKafka, directory: Path, seconds: float) -> dict[str, dict[str, float]]:
    """Send payments with CONNECTIONS connections, and batches of BATCH payments with BATCH_CONNECTIONS.

    Args:
        kafka: with the topics.
        directory: for the gateway's log.
        seconds: to measure each of them.

    Returns:
        By kind: payments per second and per CPU second of the gateway, milliseconds of a request, its peak memory.
    """
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    service = Service("gateway", kafka.bootstrap_servers, directory, GATEWAY_PORT="0").start()
    try:
        await asyncio.to_thread(service.wait_ready, 120)
        port = next(int(str(line["port"])) for line in service.log() if line["event"] == "serving")
        return {
            "singly": await _load(service, port, CONNECTIONS, 0, seconds),
            "in_batches": await _load(service, port, BATCH_CONNECTIONS, BATCH, seconds),
        }
    finally:
        service.process.terminate()


async def _load(service: Service, port: int, connections: int, batch: int, seconds: float) -> dict[str, float]:
    say(f"HTTP: {connections} connections, {f'batches of {batch}' if batch else 'payments singly'}, {seconds:g} s")
    words = ["-m", "tests.bench.http_load", KEY, *map(str, (port, connections, batch))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pid = service.process.pid
    await process.stdout.readline()  # all connections have had an answer
    await asyncio.sleep(WARM_S)
    process.stdin.write(b"begin\n")
    await process.stdout.readline()
    before_s = cpu_s(pid)
    await asyncio.sleep(seconds)
    used_s = cpu_s(pid) - before_s
    process.stdin.write(b"end\n")
    found = json.loads(await process.stdout.readline())
    process.stdin.close()
    assert await process.wait() == 0
    return {
        "payments_per_s": round(found["payments"] / found["seconds"]),
        "payments_per_cpu_s": round(found["payments"] / used_s * seconds / found["seconds"]),
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "rss_mb_max": round(high_water_mb(pid)),
    }
