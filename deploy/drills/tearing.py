"""Tear transactions: a service is held inside its transactions, markers are written to some of their partitions, and it
is killed; the coordinator aborts the other parts when the new owner initialises.

A coordinator that acts on an unreplicated commit does the same (docs/upstream.md).
"""

import asyncio
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from deploy import PROJECT_ROOT
from deploy.drills.clients.held_service import HELD
from deploy.drills.service import Service
from deploy.local.process import ManagedProcess
from shared.eos.open_transactions import Transaction
from shared.kafka.admin.transactions import describe, producers_of
from shared.kafka.admin.txn_abort import AbortFailedError, write_marker
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.cluster import Target

OFFSETS: Final = "__consumer_offsets"
LOADED_S: Final = 30.0

S = TypeVar("S", bound=Service)


def holding(service: S, until: Mapping[int, int]) -> S:
    """Hold the transactions of a service that is not started yet.

    Args:
        service: without a process that runs.
        until: by input partition, the end of the input: the transaction that reaches it is never ended.
    """
    argv = [sys.executable, "-m", "deploy.drills.clients.held_service", service.name, json.dumps(dict(until))]
    old = service.process
    service.process = ManagedProcess(old.name, argv, old.env, old.log_path.with_suffix(".held.log"), cwd=PROJECT_ROOT)
    return service


def is_held(service: Service, topic: str, partitions: Iterable[int]) -> bool:
    """Whether each of these partitions' scopes is held.

    Raises:
        ProcessNotRunningError: the service has ended; the message has the end of its log.
    """
    service.raise_if_ended()
    log = service.process.log_path.read_text()
    return all(f"{HELD}{service.name} {topic}:{number}\n" in log for number in partitions)


async def open_transaction(brokers: Brokers, name: str) -> Transaction:
    """The transaction that is open under a transactional.id, as its coordinator describes it."""
    for node_id in (await brokers.view([])).brokers:
        for found in await describe_or_none(brokers, node_id, name):
            return found
    raise LookupError(f"no coordinator knows {name}")


async def describe_or_none(brokers: Brokers, node_id: int, name: str) -> list[Transaction]:
    """Return the broker's description of the id, after it has loaded; empty if it is not the coordinator.

    Raises:
        BrokerSilentError: it does not answer, or another error.
        TimeoutError: it was loading for LOADED_S.
    """
    async with asyncio.timeout(LOADED_S):
        while True:
            try:
                return await describe(brokers, node_id, [name])
            except BrokerSilentError as error:
                if "NotCoordinator" in str(error):
                    return []
                if "CoordinatorLoadInProgress" not in str(error):
                    raise
            await asyncio.sleep(0.1)


async def commit_parts(brokers: Brokers, transaction: Transaction, targets: Collection[Target]) -> None:
    """Write COMMIT markers to some partitions of an open transaction, past its coordinator."""
    by_leader = (await brokers.view({topic for topic, _ in targets})).led_by(targets)
    if sum(map(len, by_leader.values())) < len(targets):
        raise LookupError(f"not all of {targets} have a leader")
    for leader, led in by_leader.items():
        for target in led:
            known = await producers_of(brokers, target)
            epochs = [one.coordinator_epoch for one in known if one.producer_id == transaction.producer_id]
            producer = transaction.producer_id, transaction.producer_epoch
            # An epoch above the coordinator's own would fence the coordinator
            codes = await write_marker(brokers, leader, target, producer, max([0, *epochs]), commit=True)
            if codes != [0]:
                raise AbortFailedError(f"broker {leader} refused the marker on {target}: {codes}")
