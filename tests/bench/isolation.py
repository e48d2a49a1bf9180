"""How far a dead and a slow endpoint slow the others down: `python -m tests.bench.isolation`.

The same offered load runs twice over brokers, Redis and receivers of its own: to healthy endpoints alone, then also to
one that never answers and one that takes SLOW_S. Progress and a table go to stderr, one JSON object to stdout.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import click
import uvloop

from deploy.drills.outbox import requests_to
from deploy.drills.sinks.processes import ReceiverProcess
from deploy.drills.sinks.receiver import Faults, Mode, What
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_WAITING
from shared.events.effects import WAITING_PREFIX, EffectRequest, decode_waiting
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.bench.gauges import say
from tests.harness import cluster
from tests.outbox import World, world_over

SLOW_S = 4.9  # just below the timeout of a call
NEVER_S = 60.0  # the receiver drops the connection then, long after the outbox has
DRAIN_S = 120.0
_TICK_S = 0.02


class Figures(NamedTuple):
    """Of the healthy endpoints in one run."""

    requested: int
    received: int
    per_s: float  # received in the time of the load
    p50_ms: float  # from before the request is written until the receiver has it
    p99_ms: float
    p999_ms: float


async def offer(world: World, requests: Sequence[EffectRequest], per_s: float) -> dict[str, int]:
    """Write requests at a rate, and return when each was, in milliseconds since 1970."""
    begun_s, written, done = time.monotonic(), dict[str, int](), 0
    async with IdempotentWriter(world.access) as writer:
        while done < len(requests):
            due = min(len(requests), int((time.monotonic() - begun_s) * per_s) + 1)
            at_ms = time.time_ns() // 1_000_000
            written |= {request.effect_id: at_ms for request in requests[done:due]}
            await world.write_by(writer, requests[done:due])
            done = due
            await asyncio.sleep(_TICK_S)
    return written


async def figures(
    receiver: ReceiverProcess, written: Mapping[str, int], wanted: set[str], seconds: float, before: int = 0
) -> Figures:
    """Wait until the healthy endpoints have everything, for DRAIN_S at most; then measure.

    Args:
        before: effects that the receiver had before this load.
    """
    load = {identity: at_ms for identity, at_ms in written.items() if identity in wanted}
    end_ms = min(load.values()) + int(seconds * 1000)
    deadline_s = time.monotonic() + DRAIN_S
    while receiver.counts().distinct < before + len(load) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
    received = {each.key: each.at_ms for each in receiver.deliveries() if each.what is What.PROCESSED}
    took = [received[identity] - at_ms for identity, at_ms in load.items() if identity in received]
    steps = quantiles(took, n=1000)
    in_time = sum(at_ms <= end_ms for identity, at_ms in received.items() if identity in load)
    return Figures(len(load), len(took), in_time / seconds, steps[499], steps[989], steps[998])


def mixed(places: Sequence[str], count: int) -> list[EffectRequest]:
    """Requests to all of these in turn."""
    each = [requests_to(place, count // len(places)) for place in places]
    return [request for group in zip(*each, strict=True) for request in group]


def run(directory: Path, *, healthy: int, per_s: float, seconds: float, ill: bool) -> Figures:
    """One run; `per_s` is for all endpoints, and the two ill ones have their part of it."""
    with (
        cluster(directory / "kafka") as kafka,
        world_over(kafka.bootstrap_servers, directory) as world,
        ReceiverProcess(directory / "slow", world.key_file) as slow,
        ReceiverProcess(directory / "dead", world.key_file) as dead,
    ):
        slow.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
        dead.fail(Faults(Mode.TIMEOUT, delay_s=NEVER_S))
        fine = [f"{world.receiver.url}/{number}" for number in range(healthy)]
        places = [*fine, slow.url, dead.url] if ill else fine
        rate = per_s if ill else per_s * healthy / (healthy + 2)
        requests = mixed(places, int(rate * seconds))
        settings = {"OUTBOX_BATCH_MAX": "200", "OUTBOX_CALL_TIMEOUT_S": "5", "OUTBOX_LEASE_S": "30"}
        outbox = world.outbox(**settings, OUTBOX_RETRY_FIRST_S="1", OUTBOX_CIRCUIT_OPEN_S="10").start()
        outbox.wait_ready()
        found = uvloop.run(measured(world, requests, rate, set(fine), seconds, ill=ill))
        outbox.process.terminate()
        return found


async def measured(
    world: World, requests: Sequence[EffectRequest], rate: float, fine: set[str], seconds: float, *, ill: bool
) -> Figures:
    """Offer the requests, and measure those to the healthy endpoints."""
    written = await offer(world, requests, rate)
    wanted = {request.effect_id for request in requests if request.destination in fine}
    found = await figures(world.receiver, written, wanted, seconds)
    if ill:
        await raise_if_rewritten(world)
    return found


async def raise_if_rewritten(world: World) -> None:
    """Raise AssertionError if an effect was written to effects.waiting more than once for each call, and once."""
    puts: dict[bytes, int] = {}
    attempts: dict[bytes, int] = {}

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            key = record.key or b""
            if record.value is not None and key.startswith(WAITING_PREFIX):
                puts[key] = puts.get(key, 0) + 1
                attempts[key] = max(attempts.get(key, 0), decode_waiting(record.value).attempts)

    await read_topics(world.access, [EFFECTS_WAITING], take)
    over = {key: (count, attempts[key]) for key, count in puts.items() if count > attempts[key] + 1}
    assert not over, f"{len(over)} of {len(puts)} waiting effects were written again without a call: {over}"


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True, help="Length of each of the two runs.")
@click.option("--per-s", type=float, default=500.0, show_default=True, help="Effects a second to all endpoints.")
@click.option("--endpoints", type=int, default=20, show_default=True, help="Endpoints, the two ill ones included.")
def main(minutes: float, per_s: float, endpoints: int) -> None:
    """Compare healthy endpoints alone with the same among a dead and a slow one.

    Exit code 1 if they keep less than 90 % of their rate, or their p99 is above 1.5 x.
    """
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, ill in (("alone", False), ("among", True)):
            say(f"{name}: {minutes:g} minutes")
            found[name] = run(Path(directory) / name, healthy=endpoints - 2, per_s=per_s, seconds=minutes * 60, ill=ill)
    alone, among = found["alone"], found["among"]
    rate, p99 = among.per_s / alone.per_s, among.p99_ms / alone.p99_ms
    rows = ["| healthy endpoints | effects/s | p50 ms | p99 ms | p99.9 ms | received |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {name} | {each.per_s:.1f} | {each.p50_ms:.0f} | {each.p99_ms:.0f} | {each.p999_ms:.0f} | "
        f"{each.received:,} of {each.requested:,} |"
        for name, each in found.items()
    ]
    say("\n".join([*rows, f"rate {rate:.3f} x, p99 {p99:.2f} x"]))
    holds = rate >= 0.9 and p99 <= 1.5
    shown = {name: each._asdict() for name, each in found.items()}
    click.echo(json.dumps({**shown, "rate": round(rate, 3), "p99": round(p99, 2), "holds": holds}))
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
