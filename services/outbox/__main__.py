"""Wires the outbox: requests in; effects outside, and results, waiting effects and dead letters in Kafka."""

import sys
import time
from contextlib import AsyncExitStack

from services.outbox.calls import Calls
from services.outbox.circuit import Circuits
from services.outbox.claims import connect
from services.outbox.limits import longest_replay_ms, memory_ms, policy_of
from services.outbox.service import Outbox
from services.outbox.sinks.channels import open_sinks
from services.outbox.trust import Means
from shared.events import catalogue
from shared.kafka.access import access
from shared.kafka.admin import check_topics, topic_config
from shared.kafka.service import run_service
from shared.settings import OutboxSettings

TOPICS = [
    catalogue.EFFECTS_REQUESTS,
    catalogue.EFFECTS_RESULTS,
    catalogue.EFFECTS_WAITING,
    catalogue.EFFECTS_DEAD_LETTER,
]


async def build(settings: OutboxSettings, stack: AsyncExitStack) -> Outbox:
    """The outbox, its sinks open; Redis is first asked when a partition is taken over."""
    policy = policy_of(settings)
    sinks = open_sinks(settings, time.time)
    await check_topics(access(settings), TOPICS)
    limits = [
        int(await topic_config(access(settings), catalogue.EFFECTS_REQUESTS, name))
        for name in ("retention.ms", "segment.ms")
    ]
    retention_ms = memory_ms(settings, longest_replay_ms(*limits))
    redis = connect(settings.redis_url, settings.redis_timeout_s)
    stack.push_async_callback(redis.aclose)
    for sink in sinks.values():
        await stack.enter_async_context(sink)
    circuits = Circuits(settings.circuit_failures, settings.circuit_open_s)
    calls = Calls(sinks, circuits, policy, settings.calls_max)
    return Outbox(Means(settings, redis, calls, policy, retention_ms))


if __name__ == "__main__":
    sys.exit(run_service("outbox", OutboxSettings, build, TOPICS))
