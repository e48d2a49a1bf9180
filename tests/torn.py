"""Tear transactions: a service is held inside its transactions, markers are written to some of their partitions, and it
is killed; the coordinator aborts the other parts when the new owner initialises.

A coordinator that acts on an unreplicated commit does the same (docs/upstream.md).
"""

import json
import sys
from collections.abc import Collection, Iterable, Mapping

from deploy.local.process import ManagedProcess
from shared.eos.open_transactions import Transaction
from shared.kafka.admin.transactions import describe, producers_of
from shared.kafka.admin.txn_abort import write_marker
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from tests.harness import ROOT, Service, wait_until
from tests.held_service import HELD

OFFSETS = "__consumer_offsets"


def holding(service: Service, until: Mapping[int, int]) -> Service:
    """Hold the transactions of a service that is not started yet.

    Args:
        service: as the harness makes it.
        until: by input partition, the end of the input: the transaction that reaches it is never ended.
    """
    argv = [sys.executable, "-m", "tests.held_service", service.name, json.dumps(dict(until))]
    old = service.process
    service.process = ManagedProcess(old.name, argv, old.env, old.log_path.with_suffix(".held.log"), cwd=ROOT)
    return service


def wait_held(service: Service, topic: str, partitions: Iterable[int]) -> None:
    """Wait until each of these partitions' scopes is held."""
    wanted = [f"{service.name} {topic}:{number}" for number in partitions]

    def held() -> bool:
        assert service.process.running, service.process.log_tail()
        log = service.process.log_path.read_text()
        return all(f"{HELD}{name}\n" in log for name in wanted)

    wait_until(held, f"{service.name} held in {wanted}")


async def open_transaction(brokers: Brokers, name: str) -> Transaction:
    """The transaction that is open under a transactional.id, as its coordinator describes it."""
    for node_id in (await brokers.view([])).brokers:
        for found in await describe_or_none(brokers, node_id, name):
            return found
    raise AssertionError(f"no coordinator knows {name}")


async def describe_or_none(brokers: Brokers, node_id: int, name: str) -> list[Transaction]:
    """The broker's description of the id; empty if it is not the coordinator."""
    try:
        return await describe(brokers, node_id, [name])
    except Exception as error:
        if "NotCoordinator" in str(error):
            return []
        raise


async def commit_parts(brokers: Brokers, transaction: Transaction, targets: Collection[Target]) -> None:
    """Write COMMIT markers to some partitions of an open transaction, past its coordinator."""
    by_leader = (await brokers.view({topic for topic, _ in targets})).led_by(targets)
    assert sum(map(len, by_leader.values())) == len(targets)
    for leader, led in by_leader.items():
        for target in led:
            known = await producers_of(brokers, target)
            epochs = [one.coordinator_epoch for one in known if one.producer_id == transaction.producer_id]
            producer = transaction.producer_id, transaction.producer_epoch
            # An epoch above the coordinator's own would fence the coordinator
            codes = await write_marker(brokers, leader, target, producer, max([0, *epochs]), commit=True)
            assert codes == [0], (target, codes)
