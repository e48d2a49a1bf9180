"""Tear a transaction: a restarted coordinator acts on a PrepareCommit that was never replicated.

    .venv/bin/python -m tests.upstream.torn_transaction

Exit codes: 0 the transaction was torn, 1 it was not.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deploy.local.kafka.cluster import KafkaNotReadyError, LocalKafka
from deploy.local.kafka.probe import BrokerNotAnsweringError
from deploy.local.process import ManagedProcess
from shared.eos.crash import CrashPoints
from shared.eos.errors import UnknownOutcomeError
from shared.eos.records import Output
from shared.kafka.admin import scratch
from shared.kafka.admin.transaction_state import STATE_TOPIC, Status, partition_of
from shared.kafka.client.batches import Marker
from shared.kafka.client.cluster import Cluster
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import wait_until
from tests.upstream.evidence import Ending, endings, statuses

TOPIC = "torn"
ID = "torn-1"
RECORDS = 10
TIMEOUT_MS = 60_000  # the coordinator must not abort the transaction by itself
DEADLINE_S = 90.0
LOGGERS = ("kafka.server.ControllerServer", "kafka.coordinator.transaction")
WAITING = "Waiting for the controller metadata publishers to be installed"
SENDING = "Sending txn markers for"
FETCH_WAIT_S = 0.5  # replica.fetch.wait.max.ms


class PatientKafka(LocalKafka):
    """Brokers with Kafka's default session timeout that wait long for registration and log their coordinators' work.

    The long wait is for the SIGSTOP: a broker that recovers its logs for as long keeps trying to register.
    """

    def _write_configuration(self) -> None:
        super()._write_configuration()
        log4j2 = self.directory / "log4j2.xml"
        loggers = "".join(f'<Logger name="{name}" level="INFO"/>' for name in LOGGERS)
        log4j2.write_text(log4j2.read_text().replace("</Loggers>", f"{loggers}</Loggers>"))
        for node in self.nodes:
            with self._properties_path(node.node_id).open("a") as file:
                file.write("broker.session.timeout.ms=9000\ninitial.broker.registration.timeout.ms=600000\n")


def say(step: str) -> None:
    """Print a step with the time since the program's start."""
    print(f"[{time.monotonic() - _BEGUN:6.1f} s] {step}", flush=True)


def producer(kafka: LocalKafka) -> TransactionalProducer:
    """A producer with the transactional.id."""
    return TransactionalProducer(kafka.bootstrap_servers, ID, TIMEOUT_MS, CrashPoints("", lambda _: None))


def settle(kafka: LocalKafka, restarted: int) -> None:
    """Wait until all replicas are in sync; restart a broker that ended because its registration was refused."""

    def reached() -> bool:
        kafka.processes[restarted].start()
        try:
            kafka.wait_in_sync(DEADLINE_S / 3)
        except KafkaNotReadyError:
            return False
        return True

    wait_until(reached, "all replicas in sync", DEADLINE_S)


def leader(kafka: LocalKafka, asked: int, topic: str, partition: int) -> int:
    """The leader of a partition, as one broker knows it."""
    parts = kafka.view(asked).partitions
    return next(part.leader for part in parts if (part.topic, part.partition) == (topic, partition))


def opens_log(process: ManagedProcess, partition: int) -> bool:
    """Whether a broker has opened its log of a partition of __transaction_state."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if f"/{STATE_TOPIC}-{partition}/" in str(link.readlink()):
                return True
    return False


class Tear:
    """The steps of the tear, in order.

    Args:
        kafka: three brokers, all in sync.
        coordinator: the broker that leads the state partition.
        partition: of __transaction_state, with the transactional.id's states.
    """

    def __init__(self, kafka: LocalKafka, coordinator: int, partition: int) -> None:
        self._kafka = kafka
        self._coordinator = coordinator
        self._partition = partition
        self._witness, self._third = self._others = [n.node_id for n in kafka.nodes if n.node_id != coordinator]
        self._process = kafka.processes[coordinator]
        self._logged = 0
        say(f"broker {coordinator} leads {STATE_TOPIC}-{partition} and so coordinates {ID}")

    async def create_topic(self) -> None:
        """Create three partitions; the last accepts no marker while the coordinator is down (min.insync.replicas)."""
        witness, third = self._others
        replicas = [[witness, third], [third, witness], [witness, self._coordinator]]
        async with Cluster(self._kafka.bootstrap_servers) as cluster:
            await scratch.create_topic(cluster, TOPIC, len(replicas), on=replicas)
        await asyncio.to_thread(self._kafka.wait_in_sync, 60)

    async def prepare_unreplicated(self, one: TransactionalProducer) -> None:
        """Let the coordinator append an unreplicated PrepareCommit, and kill it."""
        await one.begin()
        outputs = [Output(TOPIC, at, b"key", str(n).encode(), ()) for at in range(3) for n in range(RECORDS)]
        one.append(outputs, time.time_ns() // 1_000_000)
        await one.flush()
        say(f"transaction open: producer {one.epoch[0]}, epoch {one.epoch[1]}, {RECORDS} records on each partition")
        self._each(ManagedProcess.pause)
        # A fetch that waits at the leader would still be answered with PrepareCommit, into the follower's socket
        await asyncio.sleep(2 * FETCH_WAIT_S)
        say(f"brokers {self._others} stopped with SIGSTOP, their last fetches answered: nothing is replicated now")
        commit = asyncio.create_task(one.commit())
        await asyncio.to_thread(wait_until, lambda: self._last(self._coordinator) is Status.PREPARE_COMMIT, "commit")
        say(f"EndTxn(COMMIT) sent; broker {self._coordinator} appended PrepareCommit to its own log")
        self._kafka.processes[self._coordinator].kill()
        self._kafka.processes[self._third].kill()
        say(f"brokers {self._coordinator} and {self._third} killed with SIGKILL: no controller quorum; no answer came")
        try:
            await commit
        except UnknownOutcomeError:
            await one.discard()

    def restart_stale(self) -> None:
        """Start the coordinator again, and stop it when it has its metadata image and before it applies that."""
        kafka, coordinator, witness = self._kafka, self._coordinator, self._witness
        self._logged = len(self._process.log_path.read_text())
        kafka.processes[coordinator].start()
        self._wait_said(WAITING)
        say(f"broker {coordinator} started again: it waits for a controller quorum")
        kafka.processes[witness].resume()
        wait_until(lambda: opens_log(self._process, self._partition), "logs are loaded")
        kafka.processes[coordinator].pause()
        say(
            f"broker {witness} goes on (SIGCONT): quorum. Broker {coordinator} loads its logs; in its metadata image it"
        )
        say("still leads. SIGSTOP here, in place of a recovery of logs that takes long")

    def elect_another(self) -> None:
        """Bring the quorum back without the coordinator, and wait until the others lead everything."""
        self._kafka.processes[self._third].start()
        wait_until(self._moved, "all partitions led by, and in sync on, the others", DEADLINE_S)
        node = leader(self._kafka, self._witness, STATE_TOPIC, self._partition)
        say(
            f"broker {self._third} is back; broker {node} was elected coordinator, its log ends with {self._last(node)}"
        )

    def act_stale(self) -> None:
        """Let the former coordinator apply its stale image before it gets newer metadata."""
        self._each(ManagedProcess.pause)
        self._kafka.processes[self._coordinator].resume()
        self._wait_said(SENDING)
        say(f"broker {self._coordinator} goes on (SIGCONT) with its stale image, and logs: {SENDING} ... COMMIT")
        self._each(ManagedProcess.resume)
        settle(self._kafka, self._coordinator)
        say(f"all go on; the log of broker {self._coordinator} now ends with {self._last(self._coordinator)}")

    def _each(self, act: Callable[[ManagedProcess], None]) -> None:
        for other in self._others:
            act(self._kafka.processes[other])

    def _last(self, broker: int) -> Status:
        return statuses(self._kafka.directory / f"broker-{broker}", self._partition)[-1]

    def _moved(self) -> bool:
        others = set(self._others)
        try:
            parts = self._kafka.view(self._witness).partitions
        except BrokerNotAnsweringError:
            return False
        return all(part.leader in others and set(part.isr) >= set(part.replicas) & others for part in parts)

    def _wait_said(self, text: str) -> None:
        """Wait until the coordinator has logged something since its restart."""
        wait_until(lambda: text in self._process.log_path.read_text()[self._logged :], text, DEADLINE_S)


async def tear(kafka: LocalKafka) -> tuple[int, int]:
    """Run all steps, up to the successor's InitProducerId.

    Returns:
        The transaction's producer id and epoch.
    """
    one = producer(kafka)
    await one.init(60)
    states = sum(part.topic == STATE_TOPIC for part in kafka.view(0).partitions)
    partition = partition_of(ID, states)
    await asyncio.to_thread(kafka.wait_in_sync, 60)
    steps = Tear(kafka, leader(kafka, 0, STATE_TOPIC, partition), partition)
    await steps.create_topic()
    await steps.prepare_unreplicated(one)
    await asyncio.to_thread(steps.restart_stale)
    await asyncio.to_thread(steps.elect_another)
    await asyncio.to_thread(steps.act_stale)
    successor = producer(kafka)
    await successor.init(DEADLINE_S)
    say(f"a successor's InitProducerId succeeded with epoch {successor.epoch[1]}: the coordinator aborted")
    await successor.discard()
    return one.epoch


def report(kafka: LocalKafka, found: dict[tuple[str, int], Ending]) -> bool:
    """Print the table of evidence; returns whether the transaction is torn."""
    for (topic, partition), ending in sorted(found.items()):
        print(f"{topic}-{partition}  led by broker {leader(kafka, 0, topic, partition)} now  {ending}")
    return {ending.marker for ending in found.values()} == {Marker.COMMIT, Marker.ABORT}


async def main(directory: Path) -> int:
    """Run the steps on a new cluster."""
    kafka = PatientKafka(directory)
    kafka.start()
    try:
        kafka.wait_ready(120)
        await asyncio.to_thread(kafka.wait_in_sync, 60)
        producer_id, epoch = await tear(kafka)
        torn = report(kafka, await endings(kafka.bootstrap_servers, TOPIC, producer_id, epoch))
        print("torn: committed on some partitions, aborted on others" if torn else "not torn")
        return 0 if torn else 1
    finally:
        kafka.kill()


_BEGUN = time.monotonic()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(asyncio.run(main(Path(made))))
