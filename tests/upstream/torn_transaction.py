"""Tear a transaction: a restarted coordinator acts on a PrepareCommit that was never replicated.

    .venv/bin/python -m tests.upstream.torn_transaction

Exit codes: 0 the transaction was torn, 1 it was not.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from deploy.local.kafka import KafkaNotReadyError, LocalKafka
from deploy.local.probe import BrokerNotAnsweringError
from deploy.local.process import ManagedProcess
from shared.eos.crash import CrashPoints
from shared.eos.errors import UnknownOutcomeError
from shared.eos.records import Output
from shared.kafka.batches import Marker
from shared.kafka.producer import TransactionalProducer
from shared.kafka.transaction_state import STATE_TOPIC, Status, partition_of
from tests.drills.admin import create_topic
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
    """Brokers with Kafka's own session timeout, that wait long for their registration and log what coordinators do.

    The second is for the SIGSTOP: a broker that recovers its logs for as long would go on trying to register.
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
    """A producer under the transactional.id."""
    return TransactionalProducer(kafka.bootstrap_servers, ID, TIMEOUT_MS, CrashPoints("", lambda _: None))


def settle(kafka: LocalKafka, restarted: int) -> None:
    """Wait until all is in sync; a broker whose registration the controllers refused ends, and is started again."""

    def reached() -> bool:
        kafka.start_broker(restarted)
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


def wait_said(process: ManagedProcess, text: str, after: int) -> None:
    """Wait until a broker has logged something behind this place of its log."""
    wait_until(lambda: text in process.log_path.read_text()[after:], text, DEADLINE_S)


def opens_log(process: ManagedProcess, partition: int) -> bool:
    """Whether a broker has opened its log of a partition of __transaction_state."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if f"/{STATE_TOPIC}-{partition}/" in str(link.readlink()):
                return True
    return False


async def tear(kafka: LocalKafka) -> tuple[int, int]:
    """Run the steps up to the successor's InitProducerId; returns the transaction's producer id and epoch."""
    one = producer(kafka)
    await one.init(60)
    states = sum(part.topic == STATE_TOPIC for part in kafka.view(0).partitions)
    partition = partition_of(ID, states)
    await asyncio.to_thread(kafka.wait_in_sync, 60)
    coordinator = leader(kafka, 0, STATE_TOPIC, partition)
    others = [node.node_id for node in kafka.nodes if node.node_id != coordinator]
    data = kafka.directory / f"broker-{coordinator}"
    say(f"broker {coordinator} leads {STATE_TOPIC}-{partition} and so coordinates {ID}")

    witness, third = others
    # The last partition is under its min.insync.replicas while the coordinator is away: it takes no marker then
    replicas = [[witness, third], [third, witness], [witness, coordinator]]
    create_topic(kafka, TOPIC, ",".join(":".join(map(str, nodes)) for nodes in replicas))
    await asyncio.to_thread(kafka.wait_in_sync, 60)

    await one.begin()
    outputs = [Output(TOPIC, at, b"key", str(n).encode(), ()) for at in range(3) for n in range(RECORDS)]
    one.append(outputs, time.time_ns() // 1_000_000)
    await one.flush()
    say(f"transaction open: producer {one.epoch[0]}, epoch {one.epoch[1]}, {RECORDS} records on each of 3 partitions")

    for other in others:
        kafka.pause_broker(other)
    # A fetch that waits at the leader would still be answered with PrepareCommit, into the follower's socket
    await asyncio.sleep(2 * FETCH_WAIT_S)
    say(f"brokers {others} stopped with SIGSTOP, their last fetches answered: nothing is replicated from here on")
    commit = asyncio.create_task(one.commit())
    await asyncio.to_thread(wait_until, lambda: Status.PREPARE_COMMIT in statuses(data, partition), "PrepareCommit")
    say(f"EndTxn(COMMIT) sent; broker {coordinator} appended PrepareCommit to its own log")
    kafka.kill_broker(coordinator)
    kafka.kill_broker(third)
    say(f"brokers {coordinator} and {third} killed with SIGKILL: no controller quorum; EndTxn was never answered")
    try:
        await commit
    except UnknownOutcomeError:
        await one.discard()

    process = kafka.processes[coordinator]
    logged = len(process.log_path.read_text())
    kafka.start_broker(coordinator)
    await asyncio.to_thread(wait_said, process, WAITING, logged)
    say(f"broker {coordinator} started again: it waits for a controller quorum")
    kafka.resume_broker(witness)
    await asyncio.to_thread(wait_until, lambda: opens_log(kafka.processes[coordinator], partition), "logs are loaded")
    kafka.pause_broker(coordinator)
    say(
        f"broker {witness} goes on (SIGCONT): quorum. Broker {coordinator} has its metadata image, where it still leads, "
        "and loads its logs; SIGSTOP here, in place of a long recovery of logs"
    )
    kafka.start_broker(third)

    def moved() -> bool:
        try:
            parts = kafka.view(witness).partitions
        except BrokerNotAnsweringError:
            return False
        return all(part.leader in others and set(part.isr) >= set(part.replicas) & set(others) for part in parts)

    await asyncio.to_thread(wait_until, moved, "all partitions led by, and in sync on, the others", DEADLINE_S)
    heir = leader(kafka, witness, STATE_TOPIC, partition)
    found = statuses(kafka.directory / f"broker-{heir}", partition)
    say(f"broker {third} is back. Broker {heir} was elected coordinator; its log ends with {found[-1].value}")
    for other in others:
        kafka.pause_broker(other)
    kafka.resume_broker(coordinator)
    await asyncio.to_thread(wait_said, process, SENDING, logged)
    say(f"broker {coordinator} goes on (SIGCONT) before it hears of newer metadata, and logs: {SENDING} ... COMMIT")
    for other in others:
        kafka.resume_broker(other)
    await asyncio.to_thread(settle, kafka, coordinator)
    say(
        f"all go on and are in sync; the log of broker {coordinator} now ends with {statuses(data, partition)[-1].value}"
    )

    successor = producer(kafka)
    await successor.init(DEADLINE_S)
    say(
        f"a successor's InitProducerId succeeded with epoch {successor.epoch[1]}; the coordinator aborted the transaction"
    )
    await successor.discard()
    return one.epoch


def report(kafka: LocalKafka, found: dict[tuple[str, int], Ending]) -> bool:
    """Print the table of evidence; returns whether the transaction is torn."""
    for (topic, partition), ending in sorted(found.items()):
        print(f"{topic}-{partition}  led by broker {leader(kafka, 0, topic, partition)} now  {ending}")
    return {ending.marker for ending in found.values()} == {Marker.COMMIT, Marker.ABORT}


async def main(directory: Path) -> int:
    """Run it on a new cluster."""
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
