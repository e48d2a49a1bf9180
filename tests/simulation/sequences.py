"""Sequences of requests from seeds, for brokers that are compared.

The clients of a sequence mostly do what is right. Now and then one does what is not.

Invariants: a seed gives the same sequence each time. Transactional ids and groups belong to one sequence.
"""

from collections.abc import Callable, Mapping
from typing import Final

from shared.kafka.protocol.codec import Values
from tests.simulation.consumer_requests import ConsumerRequests
from tests.simulation.symbols import VERSIONS, At, Data, Fault, Given, Producer, Session, Step, Target

STEPS: Final = 22
_SENSIBLE: Final = 0.75
"""How often a client does first what its request needs."""
TIMEOUT_MS: Final = 60_000
"""Of transactions: the most that the brokers allow."""
_NOWHERE: Final = 99
"""A partition that no topic has."""
_OWN_SINCE: Final = 3
"""The version of InitProducerId since which a client names the session that it has (KIP-360)."""
_RAISES_SINCE: Final = 5
"""The version of EndTxn since which it gives a new session (KIP-890)."""
_FAR: Final = 1000
"""Past the end of a sequence's records."""
_FUTURE_MS: Final = 4_000_000_000_000


class _Sequence(ConsumerRequests):
    """A sequence with its producers and readers."""

    def __init__(self, seed: int, prefix: str, *, faults: bool) -> None:
        super().__init__(seed, prefix, faults=faults)
        self._clients = [Producer(f"{prefix}-{name}") for name in ("a", "b")]
        self._idempotent = Producer(None)

    def make(self) -> list[Step]:
        for client in self._clients:
            self._initialise(client)
        actions = list(_ACTIONS)
        weights = list(_ACTIONS.values())
        while len(self.steps) < STEPS:
            self._chance.choices(actions, weights)[0](self)
        return self.steps

    def _session(self, client: Producer, *, near: bool = True) -> tuple[Session, Given, Given]:
        """Choose a client's newest session, or a fenced one, or one near it that was given to no client."""
        session = client.sessions[-1]
        if self._likely(0.12):
            session = self._chance.choice(client.sessions)
        more = self._chance.choice((-1, 1)) if near and self._likely(0.05) else 0
        producer_id, epoch = session.given(more)
        return session, producer_id, epoch

    def _initialise(self, client: Producer) -> None:
        # A client whose answer was lost would not know its epoch, and ask again
        lost = bool(client.sessions) and self._faults and self._likely(0.2)
        timeout_ms = TIMEOUT_MS + 1 if client.sessions and self._likely(0.1) else TIMEOUT_MS
        values: Values = {"TransactionalId": client.name, "TransactionTimeoutMs": timeout_ms}
        step = len(self.steps)
        if lost:
            client.surpassed = True
            self.steps.append(Step("InitProducerId", 1, values, Fault.LOST))
            return
        version = self._chance.choice(VERSIONS["InitProducerId"])
        newest = True
        if client.name is not None and client.sessions and version >= _OWN_SINCE and self._likely(0.7):
            session, producer_id, epoch = self._session(client)
            values |= {"ProducerId": producer_id, "ProducerEpoch": epoch}
            newest = self._is_newest(client, session, epoch)
        else:
            client.surpassed = False
        self.steps.append(Step("InitProducerId", version, values))
        if timeout_ms == TIMEOUT_MS and newest:
            client.sessions.append(Session(step))
            client.added, client.groups, client.opened = set(), set(), False

    def _is_newest(self, client: Producer, session: Session, epoch: Given) -> bool:
        return session == client.sessions[-1] and not epoch.more and not client.surpassed

    def initialise(self) -> None:
        self._initialise(self._chance.choice(self._clients))

    def initialise_twice(self) -> None:
        if not self._faults:
            return
        client = self._chance.choice(self._clients)
        values = {"TransactionalId": client.name, "TransactionTimeoutMs": TIMEOUT_MS}
        client.sessions += [Session(len(self.steps), copy) for copy in range(2)]
        client.added, client.groups, client.opened = set(), set(), False
        self.steps.append(Step("InitProducerId", 1, values, Fault.TWICE))

    def add_partitions(self) -> None:
        self._add_partitions(self._chance.choice(self._clients))

    def _add_partitions(self, client: Producer) -> None:
        session, producer_id, epoch = self._session(client)
        targets = self._chance.sample(self._targets, self._chance.choice((1, 2, 4)))
        client.added.update(targets)
        if self._likely(0.05):
            targets.append((self._topics[0], _NOWHERE))
        else:
            client.opened |= self._is_newest(client, session, epoch)
        topics = [
            {"Name": topic, "Partitions": [number for name, number in targets if name == topic]}
            for topic in self._topics
        ]
        values = {
            "V3AndBelowTransactionalId": client.name,
            "V3AndBelowProducerId": producer_id,
            "V3AndBelowProducerEpoch": epoch,
            "V3AndBelowTopics": [topic for topic in topics if topic["Partitions"]],
        }
        self._ask("AddPartitionsToTxn", values)

    def produce(self) -> None:
        """Mostly the next batch of an open transaction; else an old one, one too far, or one of no transaction."""
        if self._likely(0.2):
            client = self._idempotent
            if not client.sessions:
                self._initialise(client)
        else:
            client = self._chance.choice(self._clients)
            if not client.added and self._likely(_SENSIBLE):
                self._add_partitions(client)
        transactional = client.name is not None and not self._likely(0.05)
        # A partition takes an epoch from the future without a transaction, and then refuses the markers for ever
        session, producer_id, epoch = self._session(client, near=transactional or client.name is None)
        targets = sorted(client.added) if client.added and self._likely(0.8) else list(self._targets)
        name = self._chance.choice(self._clients).name if self._likely(0.05) else client.name
        parts = []
        for target in self._chance.sample(targets, min(len(targets), self._chance.choice((1, 1, 2)))):
            following, contents = self._batch(client, session, target)
            parts.append((target, Data(producer_id, epoch, following, contents, transactional)))
        values = {
            "TransactionalId": name if transactional else None,
            "Acks": -1,
            "TimeoutMs": 5000,
            "TopicData": [
                {"Name": target[0], "PartitionData": [{"Index": target[1], "Records": data}]} for target, data in parts
            ],
        }
        self._ask("Produce", _merged(values))

    def _batch(self, client: Producer, session: Session, target: Target) -> tuple[int, tuple[bytes, ...]]:
        written = client.written.setdefault((session, target), [])
        kind = self._chance.random()
        if written and kind < 0.25:
            return self._chance.choice(written[-7:])
        following = written[-1][0] + len(written[-1][1]) if written else 0
        if kind < 0.32:
            following += self._chance.choice((1, 5))
        count = self._chance.choice((1, 1, 2, 3))
        values = tuple(b"%d.%d" % (len(self.steps), number) for number in range(count))
        if kind >= 0.32:
            written.append((following, values))
        return following, values

    def add_offsets(self) -> None:
        self._add_offsets(self._chance.choice(self._clients), self._any_group())

    def _add_offsets(self, client: Producer, group: str) -> None:
        session, producer_id, epoch = self._session(client)
        client.groups.add(group)
        client.opened |= self._is_newest(client, session, epoch)
        values = {"TransactionalId": client.name, "ProducerId": producer_id, "ProducerEpoch": epoch, "GroupId": group}
        self._ask("AddOffsetsToTxn", values)

    def commit_in_transaction(self) -> None:
        client = self._chance.choice(self._clients)
        member = self._of_member() if self._likely(0.5) else None
        group = self._any_group() if member is None else member["GroupId"]
        if group not in client.groups and self._likely(_SENSIBLE):
            self._add_offsets(client, group)
        _, producer_id, epoch = self._session(client)
        values = {
            "TransactionalId": client.name,
            "ProducerId": producer_id,
            "ProducerEpoch": epoch,
            "GroupId": group,
            "Topics": self._offsets(),
        }
        if member is None:
            self._ask("TxnOffsetCommit", values)
        else:
            generation, member_id = (3, member["GenerationId"]), (3, member["MemberId"])
            self._ask("TxnOffsetCommit", values, GenerationId=generation, MemberId=member_id)
        if self._likely(0.3):
            self._fetch_offsets(group)

    def end(self) -> None:
        client = self._chance.choice(self._clients)
        if not client.added and not client.groups and self._likely(_SENSIBLE):
            self._add_partitions(client)
        session, producer_id, epoch = self._session(client)
        values = {"TransactionalId": client.name, "ProducerId": producer_id, "ProducerEpoch": epoch}
        committed = self._likely(0.6)
        step = len(self.steps)
        fault = self._ask("EndTxn", values | {"Committed": committed})
        # An abort without a transaction raises the epoch as well
        if self._is_newest(client, session, epoch) and (client.opened or not committed):
            client.opened = False
            if self.steps[-1].version >= _RAISES_SINCE:
                if fault is None:
                    client.sessions.append(Session(step))
                else:
                    client.surpassed = True
        if self._likely(0.2):
            self._ask("EndTxn", values | {"Committed": committed if self._likely(0.5) else not committed})
        client.added, client.groups = set(), set()

    def fetch(self) -> None:
        more = _FAR if self._likely(0.1) else self._chance.randrange(5)
        targets = self._chance.sample(self._targets, self._chance.choice((1, 4)))
        parts = [
            (target, {"Partition": target[1], "FetchOffset": At(target, more), "PartitionMaxBytes": 2**20})
            for target in targets
        ]
        values = {
            "ReplicaId": -1,
            "MaxWaitMs": 0,
            "MinBytes": 0,
            "MaxBytes": 2**20,
            "IsolationLevel": self._chance.randrange(2),
            "Topics": [
                {"Topic": topic, "Partitions": [part for (name, _), part in parts if name == topic]}
                for topic in self._topics
                if any(name == topic for (name, _), _ in parts)
            ],
        }
        self._ask("Fetch", values, may_fail=False)

    def list_offsets(self) -> None:
        timestamp = self._chance.choice((-1, -1, -2, _FUTURE_MS))
        parts = [{"PartitionIndex": number, "Timestamp": timestamp} for number in self._numbers]
        topics = [{"Name": topic, "Partitions": parts} for topic in self._topics]
        level = self._chance.randrange(2)
        self._ask("ListOffsets", {"ReplicaId": -1, "Topics": topics}, may_fail=False, IsolationLevel=(2, level))

    def describe_transactions(self) -> None:
        names = [client.name for client in self._clients]
        if self._likely(0.1):
            names.append(f"{names[0]}-unknown")
        self._ask("DescribeTransactions", {"TransactionalIds": names}, may_fail=False)

    def describe_producers(self) -> None:
        topics = [{"Name": topic, "PartitionIndexes": list(self._numbers)} for topic in self._topics]
        self._ask("DescribeProducers", {"Topics": topics}, may_fail=False)

    def find_coordinator(self) -> None:
        kind = self._chance.randrange(2)
        name = self._clients[0].name if kind else self._members[0].group
        self._ask("FindCoordinator", {"Key": name}, may_fail=False, KeyType=(1, kind))


_ACTIONS: Final[Mapping[Callable[[_Sequence], None], int]] = {
    _Sequence.initialise: 4,
    _Sequence.initialise_twice: 1,
    _Sequence.add_partitions: 14,
    _Sequence.produce: 28,
    _Sequence.add_offsets: 6,
    _Sequence.commit_in_transaction: 8,
    _Sequence.end: 14,
    _Sequence.join: 6,
    _Sequence.sync: 2,
    _Sequence.heartbeat: 3,
    _Sequence.leave: 2,
    _Sequence.beat: 12,
    _Sequence.leave_consumers: 1,
    _Sequence.join_consumers: 1,
    _Sequence.describe_consumers: 1,
    _Sequence.commit: 6,
    _Sequence.fetch_offsets: 6,
    _Sequence.fetch: 6,
    _Sequence.list_offsets: 3,
    _Sequence.describe_transactions: 2,
    _Sequence.describe_producers: 2,
    _Sequence.find_coordinator: 1,
}
"""What a sequence is made of, with weights."""


def _merged(values: Values) -> Values:
    """Name each topic of a Produce once."""
    topics: dict[str, list[Values]] = {}
    for topic in values["TopicData"]:
        topics.setdefault(topic["Name"], []).extend(topic["PartitionData"])
    return values | {"TopicData": [{"Name": name, "PartitionData": parts} for name, parts in topics.items()]}


def sequence(seed: int, prefix: str, *, faults: bool) -> list[Step]:
    """Make the sequence of a seed; the prefix makes its names fresh."""
    return _Sequence(seed, prefix, faults=faults).make()
