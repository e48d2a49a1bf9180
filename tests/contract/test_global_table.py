"""A compacted topic as a dictionary, against real brokers."""

import asyncio

import pytest

from shared.events import catalogue
from shared.kafka.global_table import GlobalTable
from shared.kafka.idempotent import IdempotentWriter
from tests.harness import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

RAW = catalogue.PAYMENTS_RAW
LETTERS = catalogue.PAYMENTS_DEAD_LETTER
TABLE = catalogue.REFERENCE_FEES


async def test_a_global_table_has_what_is_there_and_follows(brokers: str) -> None:
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
            await writer.send(TABLE, 5, b"K5", b"new")
            await writer.send(TABLE, 4, b"K4", None)

            async def followed() -> bool:
                return values["K5"] == "new" and "K4" not in values

            await eventually(followed, "the table followed")
            assert table.failed is None
        finally:
            await table.stop()
        assert table.failed is None


async def test_a_global_table_that_cannot_follow_says_so(brokers: str) -> None:
    topic = catalogue.PAYMENTS_IDENTITIES
    table = GlobalTable(brokers, topic, bytes.decode, int)
    try:
        await table.start()
        supervised = asyncio.create_task(table.supervise())
        async with IdempotentWriter(brokers) as writer:
            await writer.send(topic, 0, b"k", b"no number")
        with pytest.raises(ValueError, match="no number"):
            await asyncio.wait_for(supervised, 30)
        assert isinstance(table.failed, ValueError)
    finally:
        await table.stop()
