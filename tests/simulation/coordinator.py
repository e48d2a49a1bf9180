"""A broker as transaction coordinator: its log, what it loads from it, and the markers that it writes.

A coordinator answers EndTxn when PrepareCommit or PrepareAbort is replicated, and writes the markers afterwards. One
that takes over loads its log to the very end, beyond the high watermark, and acts on what it finds there: that tears a
transaction whose decision is lost with the log's end (docs/upstream.md).
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, STATE_TOPIC, partition_of
from shared.kafka.client.batches import Batch, Marker
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.scope import now_ms
from tests.batches import end_marker
from tests.simulation import errors
from tests.simulation.broker import Broker, Handler, by_topic
from tests.simulation.cluster import Partition, Target
from tests.simulation.errors import RefusedError
from tests.simulation.network import Address, Network
from tests.simulation.transactions import (
    Decision,
    State,
    Transaction,
    add,
    complete,
    end,
    end_under_next_epoch,
    fence,
    given_by_end,
    has,
    initialise,
    is_late,
    record,
    recorded,
)

LOADING_S: Final = (0.01, 0.2)
"""Until a new coordinator has loaded its log, from and to."""
APPEND_TIMEOUT_S: Final = 5.0
CHECK_S: Final = 1.0
"""Interval of the search for transactions past their timeout."""
MARKER_RETRY_S: Final = 0.1
RAISES_EPOCH: Final = 5
"""The first version of EndTxn that raises the epoch."""
LATE: Final = "aborted past its timeout: "
"""In front of a transactional.id, in the notes."""
_UNKNOWN: Final = errors.UNKNOWN_TOPIC_OR_PARTITION
_TRANSACTIONAL_ID: Final = 1
"""FindCoordinator's key type; 0 is a group."""


class Coordinator:
    """The transaction coordinator of the partitions of the state topic that a broker leads.

    Args:
        producer_ids: gives out the next producer id of the cluster.
        addresses: of all brokers, by node id.
    """

    def __init__(
        self,
        broker: Broker,
        network: Network,
        chance: random.Random,
        addresses: Mapping[int, Address],
        producer_ids: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._network = network
        self._chance = chance
        self._addresses = addresses
        self._producer_ids = producer_ids
        self._loaded: dict[int, dict[str, Transaction]] = {}
        self._changing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cluster.on_leader.append(self._led_by)

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "FindCoordinator": self.find_coordinator,
            "InitProducerId": self.init_producer_id,
            "AddPartitionsToTxn": self.add_partitions,
            "AddOffsetsToTxn": self.add_offsets,
            "EndTxn": self.end_txn,
        }

    def start(self) -> None:
        """Load what it leads, and look for late transactions from now on."""
        for partition in self._cluster.topic(STATE_TOPIC):
            self._led_by(partition)
        self._run(self._expire())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _led_by(self, partition: Partition) -> None:
        topic, number = partition.target
        if topic == STATE_TOPIC:
            self._loaded.pop(number, None)
            if partition.leader == self._broker.node:
                self._run(self._load(partition, partition.epoch))

    def _leads(self, partition: Partition, epoch: int) -> bool:
        return self._cluster.led(partition.target, self._broker.node) is partition and partition.epoch == epoch

    async def _load(self, partition: Partition, epoch: int) -> None:
        await asyncio.sleep(self._chance.uniform(*LOADING_S))
        if not self._leads(partition, epoch):
            return
        known: dict[str, Transaction] = {}
        for batch in partition.log.read(partition.log.start, partition.log.end, 2**31):
            known |= recorded(batch, partition.target)
        self._loaded[partition.target[1]] = known
        for name, transaction in known.items():
            if transaction.state in {State.PREPARE_COMMIT, State.PREPARE_ABORT}:
                self._run(self._finish(partition, epoch, name, transaction))

    def transactions(self) -> Iterator[tuple[str, Transaction]]:
        """All that it has, by transactional.id."""
        for known in self._loaded.values():
            yield from known.items()

    def transaction(self, name: str) -> Transaction | None:
        """What it has of a transactional.id; raises RefusedError where another broker has it."""
        return self._here(name)[1].get(name)

    def _here(self, name: str) -> tuple[Partition, dict[str, Transaction]]:
        number = partition_of(name, len(self._cluster.topic(STATE_TOPIC)))
        partition = self._cluster.led((STATE_TOPIC, number), self._broker.node)
        if partition is None:
            raise RefusedError(errors.NOT_COORDINATOR)
        if number not in self._loaded:
            raise RefusedError(errors.COORDINATOR_LOAD_IN_PROGRESS)
        return partition, self._loaded[number]

    def _of(self, name: str) -> tuple[Partition, dict[str, Transaction]]:
        here = self._here(name)
        if name in self._changing:
            raise RefusedError(errors.CONCURRENT_TRANSACTIONS)
        return here

    async def _change(self, name: str, decide: Callable[[Transaction | None], Decision]) -> Transaction | None:
        """Decide, append the decision, and let it be the state once it is replicated; returns the state.

        Raises:
            RefusedError: as decided, or there is no coordinator here for this id.
        """
        partition, known = self._of(name)
        code, following = decide(known.get(name))
        if following is not None:
            await self._append(partition, known, name, following)
        if code != errors.NONE:
            raise RefusedError(code)
        return known.get(name)

    async def _append(
        self, partition: Partition, known: dict[str, Transaction], name: str, following: Transaction
    ) -> None:
        epoch = partition.epoch
        if not self._cluster.takes_appends(partition):
            raise RefusedError(errors.COORDINATOR_NOT_AVAILABLE)
        self._changing.add(name)
        try:
            partition.log.append(record(name, following, now_ms()))
            self._cluster.appended(partition)
            replicated = await partition.replicated(partition.log.end, APPEND_TIMEOUT_S)
        finally:
            self._changing.discard(name)
        if not self._leads(partition, epoch):
            raise RefusedError(errors.NOT_COORDINATOR)
        if not replicated:
            raise RefusedError(errors.COORDINATOR_NOT_AVAILABLE)
        known[name] = following
        state = f"{name} {following.state.name} {following.producer_id}/{following.epoch}"
        self._cluster.note(self._broker.name, state)
        if following.state in {State.PREPARE_COMMIT, State.PREPARE_ABORT}:
            self._run(self._finish(partition, epoch, name, following))

    async def _finish(self, partition: Partition, epoch: int, name: str, ending: Transaction) -> None:
        """Write the markers, whatever it takes, and then the completion.

        Where a marker is refused the transaction stays as it is: Kafka takes it as ended by another coordinator.
        """
        marks = (self._mark(partition, epoch, target, ending) for target in sorted(ending.partitions))
        written = all(await asyncio.gather(*marks))
        while written and self._leads(partition, epoch):
            try:
                await self._append(partition, self._loaded[partition.target[1]], name, complete(ending))
            except (RefusedError, KeyError):
                await asyncio.sleep(MARKER_RETRY_S)
            else:
                return

    async def _mark(self, partition: Partition, epoch: int, target: Target, ending: Transaction) -> bool:
        """Write one partition's marker through its leader, as WriteTxnMarkers does between brokers."""
        marker = end_marker(
            ending.marker, ending.producer_id, ending.epoch, coordinator_epoch=epoch, timestamp_ms=now_ms()
        )
        while self._leads(partition, epoch):
            await asyncio.sleep(self._network.delay_s())
            written = self._cluster.partitions[target]
            leader = written.leader
            reached = leader in self._cluster.alive and self._network.passes(self._broker.name, f"broker-{leader}")
            if reached and written.takes_markers and self._cluster.takes_appends(written):
                try:
                    offset = written.log.append_marker(marker)
                except RefusedError:
                    return False  # a newer coordinator or producer has been there
                self._cluster.appended(written)
                if await written.replicated(offset + 1, APPEND_TIMEOUT_S):
                    return True
            await asyncio.sleep(MARKER_RETRY_S)
        return False

    async def _expire(self) -> None:
        """Abort transactions past their timeout, under an epoch that their producer does not have."""
        while True:
            await asyncio.sleep(CHECK_S)
            time_ms = now_ms()
            late = [
                (name, transaction)
                for known in self._loaded.values()
                for name, transaction in known.items()
                if is_late(transaction, time_ms) and name not in self._changing
            ]
            for name, transaction in late:
                self._run(self._abort_late(name, transaction))

    async def _abort_late(self, name: str, late: Transaction) -> None:
        def decide(known: Transaction | None) -> Decision:
            return Decision(errors.NONE, fence(late) if known == late else None)

        try:
            await self._change(name, decide)
        except RefusedError:
            return  # found again at the next look
        self._cluster.note(self._broker.name, f"{LATE}{name}")

    async def add_for(self, name: str, batch: Batch, target: Target) -> int:
        """The error code of adding a batch's partition, as its leader asks for newer clients (KIP-890)."""
        try:
            await self._change(
                name, lambda known: add(known, batch.producer_id, batch.producer_epoch, [target], now_ms())
            )
        except RefusedError as refused:
            return refused.code
        return errors.NONE

    def check(self, name: str, batch: Batch, target: Target) -> int:
        """The error code for a batch, as its partition's leader asks before it appends the first one."""
        try:
            _, known = self._of(name)
        except RefusedError as refused:
            return refused.code
        return has(known.get(name), batch.producer_id, batch.producer_epoch, target)

    async def find_coordinator(self, _version: int, values: Values, _client: str) -> Values:
        """Name the leader of the partition of the state topic, or of the offsets topic."""
        transactional = values.get("KeyType", 0) == _TRANSACTIONAL_ID
        topic = STATE_TOPIC if transactional else OFFSETS_TOPIC
        if "CoordinatorKeys" not in values:
            return self._coordinator(topic, values["Key"])
        return {"Coordinators": [{"Key": name, **self._coordinator(topic, name)} for name in values["CoordinatorKeys"]]}

    def _coordinator(self, topic: str, name: str) -> Values:
        partition = self._cluster.partitions[topic, partition_of(name, len(self._cluster.topic(topic)))]
        if partition.leader not in self._cluster.registered:
            return {"ErrorCode": errors.COORDINATOR_NOT_AVAILABLE, "NodeId": -1, "Host": "", "Port": -1}
        host, port = self._addresses[partition.leader]
        return {"ErrorCode": errors.NONE, "NodeId": partition.leader, "Host": host, "Port": port}

    async def init_producer_id(self, version: int, values: Values, _client: str) -> Values:
        name, timeout_ms = values["TransactionalId"], values["TransactionTimeoutMs"]
        if name is None:
            return {"ErrorCode": errors.NONE, "ProducerId": self._producer_ids(), "ProducerEpoch": 0}
        producer_id, epoch = values.get("ProducerId", -1), values.get("ProducerEpoch", -1)
        own = None if producer_id < 0 else (producer_id, epoch)
        if (producer_id < 0) != (epoch < 0):
            return {"ErrorCode": errors.INVALID_REQUEST, "ProducerId": -1, "ProducerEpoch": -1}
        try:
            given = await self._change(name, lambda known: initialise(known, timeout_ms, self._producer_ids(), own))
        except RefusedError as refused:
            return {"ErrorCode": _code(refused, version, 4), "ProducerId": -1, "ProducerEpoch": -1}
        assert given is not None
        return {"ErrorCode": errors.NONE, "ProducerId": given.producer_id, "ProducerEpoch": given.epoch}

    async def add_partitions(self, version: int, values: Values, _client: str) -> Values:
        """Versions of clients; leaders of partitions call `check`."""
        targets = [(topic["Name"], number) for topic in values["V3AndBelowTopics"] for number in topic["Partitions"]]
        name, producer = values["V3AndBelowTransactionalId"], values["V3AndBelowProducerId"]
        codes = {
            target: errors.OPERATION_NOT_ATTEMPTED if target in self._cluster.partitions else _UNKNOWN
            for target in targets
        }
        if _UNKNOWN not in codes.values():
            code = await self._add(name, producer, values["V3AndBelowProducerEpoch"], targets, version)
            codes = dict.fromkeys(targets, code)
        answers = {target: {"PartitionIndex": target[1], "PartitionErrorCode": code} for target, code in codes.items()}
        results = [{"Name": topic, "ResultsByPartition": parts} for topic, parts in by_topic(answers)]
        return {"ResultsByTopicV3AndBelow": results}

    async def add_offsets(self, version: int, values: Values, _client: str) -> Values:
        number = partition_of(values["GroupId"], len(self._cluster.topic(OFFSETS_TOPIC)))
        name, producer, epoch = values["TransactionalId"], values["ProducerId"], values["ProducerEpoch"]
        return {"ErrorCode": await self._add(name, producer, epoch, [(OFFSETS_TOPIC, number)], version)}

    async def _add(self, name: str, producer: int, epoch: int, targets: list[Target], version: int) -> int:
        try:
            await self._change(name, lambda known: add(known, producer, epoch, targets, now_ms()))
        except RefusedError as refused:
            return _code(refused, version, 2)
        return errors.NONE

    async def end_txn(self, version: int, values: Values, _client: str) -> Values:
        marker = Marker.COMMIT if values["Committed"] else Marker.ABORT
        producer, epoch = values["ProducerId"], values["ProducerEpoch"]

        def decide(known: Transaction | None) -> Decision:
            if version < RAISES_EPOCH:
                return end(known, producer, epoch, marker)
            return end_under_next_epoch(known, producer, epoch, marker, self._producer_ids())

        try:
            ended = await self._change(values["TransactionalId"], decide)
        except RefusedError as refused:
            return {"ErrorCode": _code(refused, version, 2)}
        assert ended is not None
        given = given_by_end(ended) if version >= RAISES_EPOCH else (-1, -1)
        return {"ErrorCode": errors.NONE, "ProducerId": given[0], "ProducerEpoch": given[1]}


def _code(refused: RefusedError, version: int, knows_fenced: int) -> int:
    """The code for this version of a request: older ones do not know PRODUCER_FENCED (KIP-588)."""
    if refused.code == errors.PRODUCER_FENCED and version < knows_fenced:
        return errors.INVALID_PRODUCER_EPOCH
    return refused.code
