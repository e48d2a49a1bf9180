"""Transactions that do not end: hanging on a partition without a coordinator, or with a marker that is refused.

A broker refuses a transactional batch that no coordinator has added (KIP-890). So a hanging one is made while that
check is off: the batch's partition was never added, as with a delayed batch of an old client.
"""

import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from deploy.drills.clients.tools import ToolFailedError, admin_tool
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.waiting import eventually, settled_at
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.crash import NO_CRASHES
from shared.eos.errors import EosError
from shared.eos.records import Output
from shared.kafka.admin.configs import broker_config
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.admin.transactions import describe
from shared.kafka.admin.txn_abort import write_marker
from shared.kafka.client.batches import pages
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.runtime.producer import TransactionalProducer

VERIFICATION: Final = "transaction.partition.verification.enable"


@asynccontextmanager
async def unverified(kafka: LocalKafka) -> AsyncIterator[None]:
    """Let the brokers accept transactional batches that no coordinator knows."""
    brokers = ["--alter", "--entity-type", "brokers", "--entity-default"]

    async def reads(value: str) -> bool:
        return await broker_config(kafka.bootstrap_servers, VERIFICATION) == value

    try:
        await admin_tool(kafka, "kafka.admin.ConfigCommand", *brokers, "--add-config", f"{VERIFICATION}=false")
        await eventually(lambda: reads("false"), "verification off")
        yield
    finally:
        with suppress(ToolFailedError):  # it was not set, which shows next
            await admin_tool(kafka, "kafka.admin.ConfigCommand", *brokers, "--delete-config", VERIFICATION)
        await eventually(lambda: reads("true"), "verification on")


async def leave_hanging(brokers: str, target: Target, value: bytes, *, after_abort: bool = False) -> tuple[int, int]:
    """Leave a transaction hanging on a partition, while verification is off.

    Args:
        brokers: where the cluster listens.
        target: the partition.
        value: of its one record.
        after_abort: the producer had aborted a transaction there before, so that the partition knows a coordinator.

    Returns:
        Its producer's id and epoch.
    """
    made: list[tuple[int, int]] = []

    async def attempt() -> bool:
        # With version 2 of the protocol the leader would add its partition
        producer = TransactionalProducer(brokers, f"hanging-{uuid.uuid4()}", 10_000, NO_CRASHES, version_max=1)
        try:
            await producer.init(30)
            if after_abort:
                await producer.begin()
                await _write(producer, target, b"aborted")
                await producer.abort()
                await eventually(lambda: settled_at(brokers, target), "the marker of the abort written")
            await producer.begin()
            producer._added.add(target)  # noqa: SLF001 # taken for added, so nothing is
            await _write(producer, target, value)
            made.append(producer.epoch)
        except EosError:
            return False  # a broker does not know yet that the check is off
        finally:
            await producer.discard()
        return True

    await eventually(attempt, "a batch taken unverified")
    return made[0]


async def _write(producer: TransactionalProducer, target: Target, value: bytes) -> None:
    topic, partition = target
    producer.append([Output(topic, partition, b"key", value, ())], 1_700_000_000_000)
    await producer.flush()


_LEADER_EPOCH_AT: Final = 12  # in a record batch


async def refuse_markers(brokers_at: str, transactional_id: str, target: Target) -> Target:
    """Have a partition refuse the markers of an open transaction's coordinator, which then gives up on the transaction.

    An ABORT marker in the name of a newer coordinator does it. InitProducerId is answered CONCURRENT_TRANSACTIONS from
    then on, until the coordinator has moved once.

    Args:
        brokers_at: where the cluster listens.
        transactional_id: its transaction is open.
        target: a partition of the transaction, not of __consumer_offsets.

    Returns:
        The partition of __transaction_state whose leader is the coordinator.

    Raises:
        NoEvidenceError: the partition is not in the transaction, or does not take the newer marker.
    """
    async with Brokers(brokers_at) as brokers:
        view = await brokers.view([STATE_TOPIC, target[0]])
        count = sum(topic == STATE_TOPIC for topic, _ in view.leaders)
        state = (STATE_TOPIC, partition_of(transactional_id, count))
        found = (await describe(brokers, view.leaders[state], [transactional_id]))[0]
        if target not in found.partitions:
            raise NoEvidenceError(f"{target} is not in the transaction: {found}")
        newer = await _last_leader_epoch(brokers_at, state) + 1
        producer = found.producer_id, found.producer_epoch
        answers = await write_marker(brokers, view.leaders[target], target, producer, newer, commit=False)
        if answers != [0]:
            raise NoEvidenceError(f"the newer marker on {target} is answered with errors {answers}")
    return state


async def _last_leader_epoch(brokers: str, target: Target) -> int:
    """The leader epoch under which a partition's last batch was written."""
    epoch = -1
    async with Cluster(brokers) as cluster:
        await cluster.partitions([target[0]])
        first, end = await cluster.offsets([target], EARLIEST), await cluster.offsets([target], LATEST)
        async with aclosing(pages(cluster, first, ends=end, committed=False)) as read:
            async for page in read:
                for batch in page.batches:
                    epoch = struct.unpack_from(">i", batch.data, _LEADER_EPOCH_AT)[0]
    return epoch
