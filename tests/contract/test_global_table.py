"""A compacted topic as a dictionary, against real brokers."""

import asyncio

import pytest

from shared.events import catalogue
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.runtime.global_table import GlobalTable
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

RAW = catalogue.PAYMENTS_RAW
LETTERS = catalogue.PAYMENTS_DEAD_LETTER
TABLE = catalogue.REFERENCE_FEES


async def test_a_global_table_loads_all_records_and_follows(brokers: str) -> None:
    async with IdempotentWriter(brokers) as writer:
        for number in range(12):
            await writer.send(TABLE, number % 6, b"K%d" % number, b"old")
        await writer.send(TABLE, 0, b"K0", b"1")
        await writer.send(TABLE, 1, b"K1", None)
        table = GlobalTable(brokers, TABLE, bytes.decode, bytes.decode)
        try:
            await table.start()
            values = table.values
            assert values == {"K0": "1", **{f"K{n}": "old" for n in range(2, 12)}}
            assert table.places.keys() == values.keys()
            assert [table.places[key] for key in ("K0", "K6", "K5", "K11")] == ["0:2", "0:1", "5:0", "5:1"]
            await writer.send(TABLE, 5, b"K5", b"new")
            await writer.send(TABLE, 4, b"K4", None)

            async def followed() -> bool:
                return values["K5"] == "new" and "K4" not in values and "K4" not in table.places

            await eventually(followed, "the table followed")
            assert table.places["K5"] == "5:2"
            assert not await ended(table)
        finally:
            await table.stop()


async def ended(table: GlobalTable[str, str]) -> bool:
    """Whether a table that was started is no longer followed."""
    failing = asyncio.create_task(table.failed())
    try:
        done, _ = await asyncio.wait([failing], timeout=0.2)
        return bool(done)
    finally:
        failing.cancel()
        await asyncio.gather(failing, return_exceptions=True)


async def test_a_global_table_that_cannot_follow_says_so_and_can_be_restarted(brokers: str) -> None:
    topic = catalogue.PAYMENTS_IDENTITIES
    refused = {b"refused"}

    def decode(value: bytes) -> str:
        if value in refused:
            raise ValueError(f"{value!r} is not a value")
        return value.decode()

    table = GlobalTable(brokers, topic, bytes.decode, decode)
    values = table.values
    try:
        async with IdempotentWriter(brokers) as writer:
            await writer.send(topic, 0, b"kept", b"1")
            await writer.send(topic, 1, b"gone", b"2")
            await table.start()
            assert values == {"kept": "1", "gone": "2"}
            failing = asyncio.create_task(table.failed())
            await writer.send(topic, 0, b"new", b"refused")
            with pytest.raises(ValueError, match="b'refused' is not a value"):
                await asyncio.wait_for(failing, 30)
            await table.stop()

            await writer.send(topic, 1, b"gone", None)
            with pytest.raises(ValueError, match="is not a value"):  # no record is skipped
                await table.start()
            await table.stop()
            refused.clear()
            await table.start()
            assert values == {"kept": "1", "new": "refused"}
            assert not await ended(table)
    finally:
        await table.stop()
