"""Brokers whose cluster has finalised a certain version of transactions."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from deploy.drills.clients.tools import admin_tool
from deploy.local.kafka.cluster import LocalKafka

FEATURES: Final = "org.apache.kafka.tools.FeatureCommand"


async def start(directory: Path, version: int, stack: AsyncExitStack, brokers: int = 1) -> LocalKafka:
    """Start brokers; they are killed with the stack."""
    kafka = LocalKafka(directory / f"kafka-{version}", brokers)
    kafka.start()
    stack.callback(kafka.kill)
    await asyncio.to_thread(kafka.wait_ready, 120)
    if version == 1:
        await admin_tool(kafka, FEATURES, "downgrade", "--feature", "transaction.version=1")
    return kafka
