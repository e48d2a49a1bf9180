"""The view against plain Faust on the same topic, in turns: records per second, and their cost.

Invariant: each round runs all kinds back to back, in rotating order, each from the topic's start with a new group and
database. `nothing` is plain Faust with an agent that ignores records; `store` adds the view's store, with a database
transaction for each record; `take` has a transaction for each batch of Faust's `take_events`; `view` is the service.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from services.balances.projection import database
from shared.eos.records import Output
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.client.reader import stable_offsets
from tests.bench.gauges import cpu_s, high_water_mb, say
from tests.harness import ROOT, Service, eventually, settled
from tests.view_flow import assert_view_is_the_topic, flowing, positions

PLAIN_RECORDS = 10_000
"""Records for plain Faust: the whole topic would take minutes."""
PAYMENTS_A_TRANSACTION = 500
ACCOUNTS = 5000
ROUNDS = 3
POLL_S = 0.02


async def measure_view(kafka: LocalKafka, directory: Path, payments: int) -> dict[str, object]:
    """Fill ledger.postings, and read it with each kind.

    Args:
        kafka: with the topics; ledger.postings is empty.
        directory: for databases and logs.
        payments: whose postings are written.

    Returns:
        By kind, medians over the rounds: records per second, and CPU seconds per 100,000. The view's least speed-up of
        all rounds, and its peak memory.
    """
    brokers = kafka.bootstrap_servers
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    say(f"postings of {payments} payments")
    await _fill(brokers, payments)
    found: dict[str, list[dict[str, float]]] = {"nothing": [], "store": [], "take": [], "view": []}
    for number in range(ROUNDS):
        for kind in (list(found) * 2)[number : number + len(found)]:
            say(f"the view: round {number + 1} of {ROUNDS}, {kind}")
            url = f"sqlite:///{directory / f'{kind}-{number}.sqlite'}"
            if kind == "view":
                found[kind].append(await _view(brokers, directory, url, number))
            else:
                found[kind].append(await _plain(brokers, kind, f"bench-{kind}-{number}", url))
    leads = {
        kind: min(view["per_s"] / plain["per_s"] for view, plain in zip(found["view"], runs, strict=True))
        for kind, runs in found.items()
        if kind != "view"
    }
    return {
        "records": int(found["view"][0]["records"]),
        "records_per_s": {kind: round(_median(runs, "per_s")) for kind, runs in found.items()},
        "cpu_s_per_100k": {kind: round(_median(runs, "cpu_s_per_100k"), 1) for kind, runs in found.items()},
        "times_faster_least": {kind: round(lead, 1) for kind, lead in leads.items()},
        "rss_mb_max": round(max(run["rss_mb"] for run in found["view"])),
    }


def _median(runs: list[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


async def _fill(brokers: str, payments: int) -> None:
    async with flowing(brokers, accounts=ACCOUNTS) as flow:
        for _ in range(payments // PAYMENTS_A_TRANSACTION):
            outputs: list[Output] = flow.some(PAYMENTS_A_TRANSACTION)
            await flow.write(outputs)
    await eventually(lambda: settled(brokers, [LEDGER_POSTINGS]), "markers written")


async def _plain(brokers: str, mode: str, group: str, url: str) -> dict[str, float]:
    words = ["-m", "tests.plain_faust", mode, brokers, group, str(PLAIN_RECORDS), url]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    figures = json.loads(out)
    return {
        "per_s": figures["records"] / figures["seconds"],
        "cpu_s_per_100k": figures["cpu_s"] * 100_000 / figures["records"],
    }


async def _view(brokers: str, directory: Path, url: str, number: int) -> dict[str, float]:
    service = Service(
        "balances", brokers, directory, f"bench-{number}", VIEW_DATABASE=url, VIEW_PORT=str(free_ports(1)[0])
    )
    ends = {at: end for (_, at), end in (await stable_offsets(brokers, [LEDGER_POSTINGS])).items()}
    service.start()
    engine = database.reading(database.parse(url))
    try:
        await asyncio.to_thread(service.wait_ready)
        while not any(positions(engine).values()):
            await asyncio.sleep(POLL_S)
        begun_s, begun_at, pid = time.monotonic(), sum(positions(engine).values()), service.process.pid
        before_s = cpu_s(pid)
        while positions(engine) != ends:
            assert service.process.running
            await asyncio.sleep(POLL_S)
        seconds, used_s = time.monotonic() - begun_s, cpu_s(pid) - before_s
        books = await assert_view_is_the_topic(brokers, engine.url)
        records = sum(books.events.values())
        share = records * (1 - begun_at / sum(ends.values()))  # some were processed before the first measurement
        return {
            "records": records,
            "per_s": share / seconds,
            "cpu_s_per_100k": used_s * 100_000 / share,
            "rss_mb": high_water_mb(pid),
        }
    finally:
        engine.dispose()
        service.process.terminate()
