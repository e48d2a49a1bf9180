"""Plain Faust on ledger.postings: `python -m tests.plain_faust MODE BROKERS GROUP RECORDS [DATABASE]`.

A control and a measure for the view only. It begins at the topic's start, stops after RECORDS records, and prints one
JSON object: the seconds between the first and the last record, the CPU seconds in between, and in mode `show` their
coordinates. Mode `nothing` ignores each record, `store` writes it to a database of the view in its own transaction, and
`take` writes up to TAKEN records of Faust's `take_events` in one transaction.
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faust
import uvloop
from faust.types import EventT

from services.balances.projection import database
from services.balances.projection.domain import Page, plan
from services.balances.projection.store import Store
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS
from tests.partitions import PARTITIONS

TAKEN = 2000
WITHIN_S = 0.1
QUIET_S = 5.0
"""In mode `show`, seconds without a record until the end."""


class App(faust.App):
    """An app without the folder that Faust creates."""

    def _create_directories(self) -> None:
        pass


Take = Callable[[Sequence[EventT[bytes]]], None]


def storing(url: str) -> Take:
    """Return a function that writes records to a new view in one transaction."""
    store = Store(database.parse(url), PARTITIONS)
    store.open("bench")
    positions = store.positions()

    def take(events: Sequence[EventT[bytes]]) -> None:
        records: dict[int, list[Record]] = defaultdict(list)
        for event in events:
            records[event.message.partition].append(_record(event))
        pages = [
            Page(partition, positions[partition].next_offset, found[-1].offset + 1, found)
            for partition, found in records.items()
        ]
        made = plan(pages, positions)
        store.write(made)
        positions.update((number, move.after) for number, move in made.moves.items())

    return take


def _record(event: EventT[bytes]) -> Record:
    message = event.message
    headers = tuple((name, bytes(value)) for name, value in dict(message.headers or {}).items())
    timestamp_ms = int(message.timestamp * 1000)
    return Record(message.topic, message.partition, message.offset, timestamp_ms, message.key, message.value, headers)


async def run(mode: str, brokers: str, group: str, records: int, take: Take | None) -> None:
    """Consume, and print the results."""
    seen: list[tuple[int, int]] = []
    times: list[tuple[float, float]] = []
    done = asyncio.Event()
    app = App(
        group,
        broker=[f"kafka://{server}" for server in brokers.split(",")],
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
        datadir=Path(tempfile.gettempdir()),
    )

    def taken(events: Sequence[EventT[bytes]]) -> None:
        if take is not None:
            take(events)  # without a thread, which would only add cost: the consumer has its own
        if mode == "show":
            seen.extend((event.message.partition, event.message.offset) for event in events)
        times.extend([(time.monotonic(), time.process_time())] * len(events))
        if len(times) >= records:
            done.set()

    async def follow(stream: Any) -> None:
        if mode == "take":
            async for events in stream.take_events(TAKEN, WITHIN_S):
                taken(events)
        else:
            async for event in stream.events():
                taken([event])

    topic = app.topic(LEDGER_POSTINGS, key_serializer="raw", value_serializer="raw", internal=False)
    app.agent(topic, name="follow")(follow)
    await app.start()
    if mode == "show":
        while not times or time.monotonic() - times[-1][0] < QUIET_S:
            await asyncio.sleep(0.1)
    else:
        await done.wait()
    seconds, cpu_s = (last - first for first, last in zip(times[0], times[-1], strict=True))
    print(json.dumps({"records": len(times), "seconds": seconds, "cpu_s": cpu_s, "seen": seen}), flush=True)
    await app.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    MODE, BROKERS, GROUP, RECORDS, *URL = sys.argv[1:]
    uvloop.run(run(MODE, BROKERS, GROUP, int(RECORDS), storing(URL[0]) if MODE in {"store", "take"} else None))
