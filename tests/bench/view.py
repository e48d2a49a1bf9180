"""The view against plain Faust on the same topic, in turns: records each second, and what they cost.

What holds: each round runs all of them back to back, in another order each time, each from the topic's start and with a
group and a database of its own. `nothing` is Faust as it comes with an agent that does nothing with a record; `one by
one` is the same with the view's own store, a database transaction for each record; `view` is the service.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from deploy.local.kafka import LocalKafka
from deploy.local.ports import free_ports
from services.balances import database
from shared.eos.records import Output
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.reader import stable_offsets
from tests.bench.gauges import cpu_s, high_water_mb, say
from tests.harness import ROOT, Service, eventually, settled
from tests.view_flow import assert_view_is_the_topic, flowing, positions

PLAIN_RECORDS = 10_000
"""Of the topic, that plain Faust has to get through: it would take minutes for all."""
PAYMENTS_A_TRANSACTION = 500
ACCOUNTS = 5000
ROUNDS = 3


async def measure_view(kafka: LocalKafka, directory: Path, payments: int) -> dict[str, object]:
    """Fill ledger.postings, and read it in each way.

    Args:
        kafka: with the topics; ledger.postings is empty.
        directory: for databases and logs.
        payments: whose postings are written.

    Returns:
        Records each second: medians over the rounds; the view's lead over plain Faust, its least; CPU seconds of the
        view for each 100,000 records, and the most memory that it had.
    """
    brokers = kafka.bootstrap_servers
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    say(f"postings of {payments} payments")
    await _fill(brokers, payments)
    found: dict[str, list[dict[str, float]]] = {"nothing": [], "store": [], "view": []}
    for number in range(ROUNDS):
        kinds = list(found)[number:] + list(found)[:number]
        for kind in kinds:
            say(f"the view: round {number + 1} of {ROUNDS}, {kind}")
            url = f"sqlite:///{directory / f'{kind}-{number}.sqlite'}"
            if kind == "view":
                found[kind].append(await _view(brokers, directory, url, number))
            else:
                found[kind].append(await _plain(brokers, kind, f"bench-{kind}-{number}", url))
    rates = {kind: [run["per_s"] for run in runs] for kind, runs in found.items()}
    last = found["view"][-1]
    return {
        "records": int(last["records"]),
        "records_per_s": {
            "view": round(statistics.median(rates["view"])),
            "faust_one_by_one_same_store": round(statistics.median(rates["store"])),
            "faust_one_by_one_nothing": round(statistics.median(rates["nothing"])),
        },
        "lead_least": {
            "over_same_store": round(min(a / b for a, b in zip(rates["view"], rates["store"], strict=True)), 1),
            "over_nothing": round(min(a / b for a, b in zip(rates["view"], rates["nothing"], strict=True)), 1),
        },
        "cpu_s_per_100k": round(statistics.median(run["cpu_s_per_100k"] for run in found["view"]), 2),
        "rss_mb_max": round(max(run["rss_mb"] for run in found["view"])),
    }


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
    told = json.loads(out)
    return {"per_s": told["records"] / told["seconds"]}


async def _view(brokers: str, directory: Path, url: str, number: int) -> dict[str, float]:
    parsed = database.parse(url)
    service = Service(
        "balances", brokers, directory, f"bench-{number}", VIEW_DATABASE=url, VIEW_PORT=str(free_ports(1)[0])
    )
    ends = {at: end for (_, at), end in (await stable_offsets(brokers, [LEDGER_POSTINGS])).items()}
    service.start()
    try:
        await asyncio.to_thread(service.wait_ready)
        pid = service.process.pid
        begun_s, begun_at, before_s = time.monotonic(), sum(positions(parsed).values()), cpu_s(pid)
        while (now := positions(parsed)) != ends:
            await asyncio.sleep(0.02)
            assert service.process.running
        seconds = time.monotonic() - begun_s
        used_s = cpu_s(pid) - before_s
        books = await assert_view_is_the_topic(brokers, parsed)
        records = sum(books.events.values())
        share = records * (sum(now.values()) - begun_at) / sum(now.values())  # some were taken in before the first look
        return {
            "records": records,
            "per_s": share / seconds,
            "cpu_s_per_100k": used_s * 100_000 / share,
            "rss_mb": high_water_mb(pid),
        }
    finally:
        service.process.terminate()
