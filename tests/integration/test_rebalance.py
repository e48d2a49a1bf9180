"""Members join and leave the group under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.validation import key_of
from shared.kafka.client.idempotent import IdempotentWriter
from tests.harness import Service, services, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import assert_exactly_once, verdict

pytestmark = pytest.mark.timeout(240)

PAUSE_S = 0.05  # between payments: unpaced, each would cost three services a transaction as fast as they can


@asynccontextmanager
async def trickle(bootstrap_servers: str) -> AsyncIterator[None]:
    """Send one payment at a time: most partitions are idle, and one has just received a record."""
    done = asyncio.Event()

    async def send() -> None:
        async with IdempotentWriter(bootstrap_servers) as writer:
            for value in payments("trickle", 100_000):
                if done.is_set():
                    return
                key, partition = key_of(value, PARTITIONS)
                await writer.write(catalogue.PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
                await writer.flush()
                await asyncio.sleep(PAUSE_S)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        done.set()
        await sending


def has_partitions(service: Service) -> bool:
    return service.metric("kafka_consumer_assigned_partitions") > 0


async def test_partitions_are_revoked_as_soon_as_their_transactions_have_ended(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    """A transaction scope that waits for records must not delay the rebalance until its deadline."""
    patient = {"STOP_DEADLINE_S": "60"}
    staying = Service("ingest", kafka.bootstrap_servers, tmp_path, **patient)
    with services(kafka.bootstrap_servers, tmp_path, "transform", "ledger"):
        try:
            staying.start().wait_ready()
            async with trickle(kafka.bootstrap_servers):
                for number in range(3):
                    joining = Service("ingest", kafka.bootstrap_servers, tmp_path, f"joining-{number}", **patient)
                    joining.start()
                    try:
                        await asyncio.to_thread(joining.wait_ready)
                        await asyncio.to_thread(wait_until, partial(has_partitions, joining), "it has some")
                    finally:
                        joining.process.terminate()
            wait_until(lambda: staying.metric("kafka_consumer_assigned_partitions") == PARTITIONS, "it has all again")
            assert staying.metric("kafka_consumer_rebalance_total") >= 3
            assert not staying.logged("transactions not ended before the deadline")
            assert_exactly_once(verdict(kafka.bootstrap_servers))
        finally:
            staying.process.terminate()
