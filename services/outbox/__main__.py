"""Wires the outbox: requests in; effects outside, and results, waiting effects and dead letters in Kafka."""

import sys
import time
from contextlib import AsyncExitStack

from services.outbox.connection import connect, redis_access
from services.outbox.dispatch import CIRCUITS_OPEN, ENDPOINTS_DISABLED, Calls
from services.outbox.endpoints import Endpoints
from services.outbox.lanes import Lanes
from services.outbox.limits import HOUR_MS, Capacity, longest_replay_ms, memory_ms, policy_of
from services.outbox.rights import check_access
from services.outbox.service import Outbox
from services.outbox.sinks.channels import open_sinks
from services.outbox.trust import OutboxContext
from shared.events import catalogue
from shared.events.endpoints import decode_endpoint
from shared.kafka.admin.configs import topic_config
from shared.kafka.admin.installation import installation_id
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.runtime.global_table import GlobalTable
from shared.kafka.runtime.runtime import run_service
from shared.settings import OutboxSettings

TOPICS = [
    catalogue.INSTALLATION,
    catalogue.EFFECTS_REQUESTS,
    catalogue.EFFECTS_RESULTS,
    catalogue.EFFECTS_WAITING,
    catalogue.EFFECTS_DEAD_LETTER,
    catalogue.REFERENCE_ENDPOINTS,
]


async def build(settings: OutboxSettings, stack: AsyncExitStack) -> Outbox:
    """The outbox, its sinks open. Redis lets it in, or is away: then each partition waits for it."""
    policy = policy_of(settings)
    sinks = open_sinks(settings, time.time)
    reached = redis_access(settings)
    redis = connect(reached, settings.redis_timeout_s)
    stack.push_async_callback(redis.aclose)
    await check_access(redis, reached, settings.redis_timeout_s)
    await check_topics(access(settings), TOPICS, settings.partitions)
    limits = [
        int(await topic_config(access(settings), catalogue.EFFECTS_REQUESTS, name))
        for name in ("retention.ms", "segment.ms")
    ]
    capacity = Capacity(settings.rate_per_s, memory_ms(settings, longest_replay_ms(*limits)), settings.partitions)
    installation = await installation_id(access(settings))
    for sink in sinks.values():
        await stack.enter_async_context(sink)
    table = GlobalTable(access(settings), catalogue.REFERENCE_ENDPOINTS, bytes.decode, decode_endpoint)
    endpoints = Endpoints(table.values, int(settings.disable_after_h * HOUR_MS))
    lanes = Lanes(settings.calls_max, settings.lane_calls_max, settings.circuit_failures, settings.circuit_open_s)
    calls = Calls(sinks, lanes, policy, endpoints)
    stack.callback(CIRCUITS_OPEN.add(lambda: [((), lanes.open_count(time.monotonic()))]))
    stack.callback(ENDPOINTS_DISABLED.add(lambda: [((), endpoints.disabled_count())]))
    return Outbox(OutboxContext(settings, redis, calls, policy, endpoints, installation, capacity), resources=(table,))


if __name__ == "__main__":
    sys.exit(run_service("outbox", OutboxSettings, build, TOPICS))
