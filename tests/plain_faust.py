"""Faust as it comes, on ledger.postings: `python -m tests.plain_faust MODE BROKERS GROUP RECORDS [DATABASE]`.

A control and a measure for the view, never to be run for anything else. It begins at the topic's start, stops after so
many records, and prints one JSON object: the seconds between the first and the last one, and in mode `show` which they
were. What it does with each record: `show` notes its coordinates, `nothing` nothing, and `store` takes it into a
database of the view in a transaction of its own.
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faust
import uvloop
from faust.types import EventT

from services.balances import database
from services.balances.domain import Page, plan
from services.balances.store import Store
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS

QUIET_S = 5.0
"""In mode `show`, how long nothing has to come until that was all."""


class App(faust.App):
    """Without the folder that Faust makes where it is started."""

    def _create_directories(self) -> None:
        pass


def storing(url: str) -> Callable[[EventT[bytes]], None]:
    """Takes one record into a view of its own."""
    store = Store(database.parse(url))
    store.open("bench")
    positions = store.positions()

    def take(event: EventT[bytes]) -> None:
        message = event.message
        headers = tuple((name, bytes(value)) for name, value in dict(message.headers or {}).items())
        timestamp_ms = int(message.timestamp * 1000)
        record = Record(
            message.topic, message.partition, message.offset, timestamp_ms, message.key, message.value, headers
        )
        start = positions[message.partition].next_offset
        made = plan([Page(message.partition, start, message.offset + 1, [record])], positions)
        store.write(made)
        positions.update((number, move.after) for number, move in made.moves.items())

    return take


async def run(mode: str, brokers: str, group: str, records: int, take: Callable[[EventT[bytes]], None] | None) -> None:
    """Consume, and print what came of it."""
    seen: list[tuple[int, int]] = []
    times: list[float] = []
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

    async def follow(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            if take is not None:
                take(event)  # without a thread, which would only cost here: the consumer has one of its own
            if mode == "show":
                seen.append((event.message.partition, event.message.offset))
            times.append(time.monotonic())
            if len(times) == records:
                done.set()

    topic = app.topic(LEDGER_POSTINGS, key_serializer="raw", value_serializer="raw", internal=False)
    app.agent(topic, name="follow")(follow)
    await app.start()
    if mode == "show":
        while not times or time.monotonic() - times[-1] < QUIET_S:
            await asyncio.sleep(0.1)
    else:
        await done.wait()
    print(json.dumps({"records": len(times), "seconds": times[-1] - times[0], "seen": seen}), flush=True)
    await app.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    MODE, BROKERS, GROUP, RECORDS, *URL = sys.argv[1:]
    uvloop.run(run(MODE, BROKERS, GROUP, int(RECORDS), storing(URL[0]) if MODE == "store" else None))
