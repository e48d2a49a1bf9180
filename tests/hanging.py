"""Open transactions: left open by a killed process, or hanging on a partition without a coordinator.

A broker refuses a transactional batch that no coordinator has added (KIP-890). So a hanging one is made while that
check is off: the batch's partition was never added, as with a delayed batch of an old client.
"""

import os
import struct
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from deploy.local import jars
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.prerequisites import require_java
from deploy.local.process import ManagedProcess
from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError
from shared.eos.records import Output
from shared.kafka.admin.topics import broker_config
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.admin.transactions import describe
from shared.kafka.admin.txn_abort import write_marker
from shared.kafka.client.batches import pages
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import ROOT, eventually, settled_at, wait_until

VERIFICATION = "transaction.partition.verification.enable"
OPEN = "transaction open"
"""Output of the process of `abandon`."""


def tool(kafka: LocalKafka, main_class: str, *words: str) -> str:
    """Run one of Kafka's own tools against the cluster; returns what it printed.

    Raises:
        AssertionError: it failed.
    """
    environment = {**os.environ, "CLASSPATH": jars.classpath()}
    argv = [
        require_java(),
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2.xml'}",
        main_class,
    ]
    argv += ["--bootstrap-server", kafka.bootstrap_servers, *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@asynccontextmanager
async def unverified(kafka: LocalKafka) -> AsyncIterator[None]:
    """Let the brokers accept transactional batches that no coordinator knows."""
    brokers = ["--alter", "--entity-type", "brokers", "--entity-default"]

    async def reads(value: str) -> bool:
        return await broker_config(kafka.bootstrap_servers, VERIFICATION) == value

    tool(kafka, "kafka.admin.ConfigCommand", *brokers, "--add-config", f"{VERIFICATION}=false")
    try:
        await eventually(lambda: reads("false"), "verification off")
        yield
    finally:
        tool(kafka, "kafka.admin.ConfigCommand", *brokers, "--delete-config", VERIFICATION)
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
        producer = TransactionalProducer(
            brokers, f"hanging-{uuid.uuid4()}", 10_000, CrashPoints("", lambda _: None), version_max=1
        )
        try:
            await producer.init(30)
            if after_abort:
                await producer.begin()
                await _write(producer, target, b"aborted")
                await producer.abort()
                await eventually(lambda: settled_at(brokers, target), "the marker of the abort written")
            await producer.begin()
            producer._added.add(target)  # taken for added, so nothing is
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


def abandon(
    brokers: str, directory: Path, transactional_id: str, targets: list[Target], *, timeout_ms: int = 60_000
) -> None:
    """Leave a transaction open that has a record on each partition, by a process that is killed.

    Args:
        brokers: where the cluster listens.
        directory: for the process's log.
        transactional_id: the producer's, and the records' value.
        targets: the partitions.
        timeout_ms: after it the coordinator aborts the transaction.
    """
    words = [brokers, transactional_id, str(timeout_ms), *(f"{topic}:{partition}" for topic, partition in targets)]
    argv = [sys.executable, "-m", "tests.open_transaction", *words]
    process = ManagedProcess(transactional_id, argv, {}, directory / f"{uuid.uuid4()}.log", cwd=ROOT)
    process.start()
    try:
        wait_until(lambda: OPEN in process.log_tail() or not process.running, f"{transactional_id} open")
        assert process.running, process.log_tail()
    finally:
        process.kill()


_LEADER_EPOCH_AT = 12  # in a record batch


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
    """
    async with Brokers(brokers_at) as brokers:
        view = await brokers.view([STATE_TOPIC, target[0]])
        count = sum(topic == STATE_TOPIC for topic, _ in view.leaders)
        state = (STATE_TOPIC, partition_of(transactional_id, count))
        found = (await describe(brokers, view.leaders[state], [transactional_id]))[0]
        assert target in found.partitions, found
        newer = await _last_leader_epoch(brokers_at, state) + 1
        producer = found.producer_id, found.producer_epoch
        assert await write_marker(brokers, view.leaders[target], target, producer, newer, commit=False) == [0]
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
