"""The key of webhooks is replaced while the outbox, a process, sends: no call is refused."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.events.effects import EffectRequest, EffectState
from tests.harness import eventually
from tests.outbox import World, assert_i11, world
from tests.sinks.rigs import CountingReceiver
from tests.tiers import full

pytestmark = [pytest.mark.timeout(300), full]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        yield made


async def test_no_call_is_refused_while_the_key_is_rotated(running: World, tmp_path: Path) -> None:
    previous_file, new_file = tmp_path / "webhook.previous.key", tmp_path / "new.key"
    requests: list[EffectRequest] = []
    rotated = asyncio.Event()

    async def load() -> None:
        while not rotated.is_set():
            requests.extend(await running.request(50, receiver.url))

    async def signed(times: int) -> None:
        """Wait until calls have so many signatures, and for some calls more."""

        async def so_many() -> bool:
            return receiver.signatures == times

        await eventually(so_many, f"{times} signatures")
        enough = receiver.counts().distinct + 200

        async def further() -> bool:
            return receiver.counts().distinct >= enough

        await eventually(further, "more calls")

    async with CountingReceiver(tmp_path / "deliveries.jsonl", running.key_file.read_bytes()) as receiver:
        outbox = running.outbox(WEBHOOK_PREVIOUS_KEY_FILE=str(previous_file)).start()
        await asyncio.to_thread(outbox.wait_ready)
        async with asyncio.TaskGroup() as group:
            group.create_task(load())
            await signed(1)
            # The steps of docs/webhooks.md
            previous_file.write_bytes(running.key_file.read_bytes())
            new_file.write_text(secrets.token_hex(32))
            new_file.replace(running.key_file)
            await signed(2)
            receiver.key = running.key_file.read_bytes()
            await signed(2)
            previous_file.unlink()
            await signed(1)
            rotated.set()
        results = await running.settled(requests)
        counts = receiver.counts()
    assert assert_i11(requests, results, Counter(counts.by_key)) == {EffectState.SENT: len(requests)}
    assert {result.attempts for result in results.values()} == {1}
    assert counts.by_what == {"processed": len(requests)}
