"""Why InitProducerId does not succeed: the state of the transactional.id at its transaction coordinator.

The coordinator answers CONCURRENT_TRANSACTIONS until every partition of the predecessor's transaction has its marker,
and the client retries without logging.

Invariant: a query takes a bounded time and never fails because of brokers; the sentence names what does not answer.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.protocol.coordination import FindCoordinatorRequest

from shared.eos.open_transactions import ENDING_STATES, Target, Transaction
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.admin.transactions import describe, error_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.errors import KafkaUnavailableError
from shared.telemetry.metrics import UNKNOWN

WAIT_S = 5.0  # a takeover has the answer within tenths of a second; aborting a predecessor's transaction takes 1 to 2 s
REFRESH_S = 3.0
ANSWER_S = 2.0  # for one request
NAMED_MAX = 5  # partitions named in the sentence

log = logging.getLogger(__name__)


class Wait(NamedTuple):
    """The cause of an InitProducerId wait.

    Attributes:
        reason: a sentence for the operator; empty while it does not wait.
        coordinator: the broker's id, where a broker names it.
        state: of the transaction, as Kafka names it, where the coordinator describes it.
    """

    reason: str = ""
    coordinator: str = UNKNOWN
    state: str = UNKNOWN


@asynccontextmanager
async def explained_wait(
    bootstrap_servers: Bootstrap,
    transactional_id: str,
    report: Callable[[Wait], None],
    *,
    wait_s: float = WAIT_S,
    refresh_s: float = REFRESH_S,
) -> AsyncGenerator[None]:
    """Report the cause of an InitProducerId wait while the context is entered.

    Args:
        transactional_id: the producer's.
        report: takes the cause, after `wait_s` and then every `refresh_s`, and an empty `Wait` at the end.
        wait_s: seconds before the first report.
        refresh_s: seconds between two queries.
    """

    async def explain() -> None:
        begun = time.monotonic()
        await asyncio.sleep(wait_s)
        async with Brokers(bootstrap_servers, answer_s=ANSWER_S) as brokers:
            logged = False
            while True:
                found = await explanation(brokers, transactional_id)
                reason = f"InitProducerId of {transactional_id} waits: {found.reason}"
                report(found._replace(reason=reason))
                if not logged:
                    seconds = round(time.monotonic() - begun, 1)
                    log.warning(reason, extra={"transactional_id": transactional_id, "seconds": seconds})
                logged = True
                await asyncio.sleep(refresh_s)

    explaining = asyncio.create_task(explain())
    try:
        yield
    finally:
        explaining.cancel()
        await asyncio.wait([explaining])  # unlike awaiting it, swallows no cancellation of the caller
        report(Wait())


async def explanation(brokers: Brokers, transactional_id: str) -> Wait:
    """Describe a transactional.id: its coordinator, the state of its transaction, and the missing markers.

    Args:
        brokers: connections.
        transactional_id: the producer's.
    """
    coordinator: int | None = None
    try:
        view = await brokers.view([STATE_TOPIC])
        count = sum(topic == STATE_TOPIC for topic, _ in view.leaders)
        partition = f"{STATE_TOPIC}:{partition_of(transactional_id, count)}" if count else STATE_TOPIC
        silent: list[str] = []
        coordinator = await _coordinator(brokers, sorted(view.brokers), transactional_id, silent)
        if coordinator is None:
            return Wait(f"no broker names its coordinator, the leader of {partition} ({'; '.join(silent)})")
        named = f"its coordinator, broker {coordinator}, which leads {partition},"
        if coordinator not in view.brokers:
            return Wait(f"{named} is not part of the cluster now", str(coordinator))
        found = await describe(brokers, coordinator, [transactional_id])
        if not found:
            return Wait(f"{named} does not know it", str(coordinator))
        return Wait(f"{named} {await _state(brokers, found[0])}", str(coordinator), found[0].state)
    except BrokerSilentError as error:
        return Wait(f"its coordinator leads {partition} and cannot be asked: {error}", str(coordinator))
    except KafkaUnavailableError as error:
        return Wait(str(error))


async def _coordinator(brokers: Brokers, node_ids: list[int], transactional_id: str, silent: list[str]) -> int | None:
    """Return the coordinator according to the first broker that knows it; add the others' reasons to `silent`."""
    for node_id in node_ids:
        try:
            found = await brokers.ask(node_id, FindCoordinatorRequest(transactional_id, CoordinationType.TRANSACTION))
        except BrokerSilentError as error:
            silent.append(str(error))
            continue
        if not found.error_code:
            coordinator: int = found.coordinator_id
            return coordinator
        silent.append(f"broker {node_id}: {error_of(found.error_code)}")
    return None


async def _state(brokers: Brokers, found: Transaction) -> str:
    """Describe the state, and what would end it."""
    if found.state not in ENDING_STATES:
        return f"has it in {found.state}, with no marker missing: its log takes no write"
    leaders = (await brokers.view({topic for topic, _ in found.partitions})).leaders if found.partitions else {}
    without = [target for target in found.partitions if leaders.get(target, -1) < 0]
    if without:
        return f"has it in {found.state}; markers are missing on {_named(without)}, which have no leader"
    if found.partitions:
        return f"has it in {found.state}; markers are missing on {_named(found.partitions)}, all of which have leaders"
    return f"has it in {found.state} with all markers written: its log takes no write"


def _named(targets: tuple[Target, ...] | list[Target]) -> str:
    named = ", ".join(f"{topic}:{partition}" for topic, partition in targets[:NAMED_MAX])
    return f"{named} and {len(targets) - NAMED_MAX} more" if len(targets) > NAMED_MAX else named
