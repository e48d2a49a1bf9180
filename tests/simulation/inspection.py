"""Transactions and groups as a broker shows them to operators (KIP-664), and the markers that it writes for them."""

from typing import Final

from shared.kafka.client.batches import Marker
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.scope import now_ms
from tests.batches import end_marker
from tests.simulation import errors
from tests.simulation.broker import Broker, Handler, by_topic
from tests.simulation.cluster import Target
from tests.simulation.coordinated import Groups
from tests.simulation.coordinator import Coordinator
from tests.simulation.errors import RefusedError
from tests.simulation.groups import Group
from tests.simulation.groups import State as GroupState
from tests.simulation.transactions import State, Transaction

_NAMES: Final = {state: state.name.title().replace("_", "") for state in State}


class Inspection:
    """The APIs of operators.

    Args:
        broker: that serves them.
        coordinator: the broker's.
        groups: that the broker coordinates.
    """

    def __init__(self, broker: Broker, coordinator: Coordinator, groups: Groups) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._coordinator = coordinator
        self._groups = groups

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "ListTransactions": self.list_transactions,
            "DescribeTransactions": self.describe_transactions,
            "DescribeProducers": self.describe_producers,
            "DescribeGroups": self.describe_groups,
            "WriteTxnMarkers": self.write_markers,
        }

    async def list_transactions(self, _version: int, values: Values, _client: str) -> Values:
        wanted = set(values["StateFilters"])
        found = [
            {"TransactionalId": name, "ProducerId": one.producer_id, "TransactionState": _NAMES[one.state]}
            for name, one in self._coordinator.transactions()
            if not wanted or _NAMES[one.state] in wanted
        ]
        unknown = sorted(wanted - set(_NAMES.values()))
        return {"ErrorCode": errors.NONE, "UnknownStateFilters": unknown, "TransactionStates": found}

    async def describe_transactions(self, _version: int, values: Values, _client: str) -> Values:
        return {"TransactionStates": [self._transaction(name) for name in values["TransactionalIds"]]}

    def _transaction(self, name: str) -> Values:
        unknown = {"TransactionalId": name, "TransactionState": "", "Topics": []}
        try:
            known = self._coordinator.transaction(name)
        except RefusedError as refused:
            return {"ErrorCode": refused.code, **unknown}
        if known is None:
            return {"ErrorCode": errors.TRANSACTIONAL_ID_NOT_FOUND, **unknown}
        return {"ErrorCode": errors.NONE, "TransactionalId": name, **_described(known)}

    async def describe_producers(self, _version: int, values: Values, _client: str) -> Values:
        answers = {
            (topic["Name"], number): self._producers((topic["Name"], number))
            for topic in values["Topics"]
            for number in topic["PartitionIndexes"]
        }
        return {"Topics": [{"Name": name, "Partitions": parts} for name, parts in by_topic(answers)]}

    def _producers(self, target: Target) -> Values:
        try:
            producers = self._broker.led(target).log.producers
        except RefusedError as refused:
            return {"PartitionIndex": target[1], "ErrorCode": refused.code, "ActiveProducers": []}
        active = [
            {
                "ProducerId": producer_id,
                "ProducerEpoch": state.epoch,
                "LastSequence": state.batches[-1].last_sequence if state.batches else -1,
                "LastTimestamp": state.timestamp_ms,
                "CoordinatorEpoch": state.coordinator_epoch,
                "CurrentTxnStartOffset": -1 if state.transaction_from is None else state.transaction_from,
            }
            for producer_id, state in producers.items()
        ]
        return {"PartitionIndex": target[1], "ErrorCode": errors.NONE, "ActiveProducers": active}

    async def describe_groups(self, _version: int, values: Values, _client: str) -> Values:
        return {"Groups": [self._group(name) for name in values["Groups"]]}

    def _group(self, name: str) -> Values:
        code = errors.NONE
        try:
            found = self._groups.find(name)
        except RefusedError as refused:
            code, found = refused.code, None
        group = found if isinstance(found, Group) else None  # one of the newer protocol is dead to this API
        members = [] if group is None else list(group.members.values())
        protocol = group.protocol if group is not None and group.state is GroupState.STABLE else ""
        return {
            "ErrorCode": code,
            "GroupId": name,
            "GroupState": "Dead" if group is None else group.state.value,
            "ProtocolType": "consumer" if group is not None and (members or group.generation) else "",
            "ProtocolData": protocol,
            "Members": [
                {
                    "MemberId": member.member_id,
                    "GroupInstanceId": member.instance,
                    "ClientId": "",
                    "ClientHost": "",
                    "MemberMetadata": member.protocols.get(protocol, b""),
                    "MemberAssignment": member.assignment,
                }
                for member in members
            ],
        }

    async def write_markers(self, _version: int, values: Values, _client: str) -> Values:
        """Append the markers that an operator asks for, without the coordinator."""
        return {"Markers": [self._written(marker) for marker in values["Markers"]]}

    def _written(self, asked: Values) -> Values:
        targets = [(topic["Name"], number) for topic in asked["Topics"] for number in topic["PartitionIndexes"]]
        answers = {target: {"PartitionIndex": target[1], "ErrorCode": self._write(target, asked)} for target in targets}
        topics = [{"Name": name, "Partitions": parts} for name, parts in by_topic(answers)]
        return {"ProducerId": asked["ProducerId"], "Topics": topics}

    def _write(self, target: Target, asked: Values) -> int:
        outcome = Marker.COMMIT if asked["TransactionResult"] else Marker.ABORT
        producer, epoch, coordinator = asked["ProducerId"], asked["ProducerEpoch"], asked["CoordinatorEpoch"]
        marker = end_marker(outcome, producer, epoch, coordinator_epoch=coordinator, timestamp_ms=now_ms())
        try:
            partition = self._broker.led(target)
            partition.log.append_marker(marker)
        except RefusedError as refused:
            return refused.code
        self._cluster.appended(partition)
        return errors.NONE


def _described(known: Transaction) -> Values:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(known.partitions):
        topics.setdefault(topic, []).append(number)
    return {
        "TransactionState": _NAMES[known.state],
        "TransactionTimeoutMs": known.timeout_ms,
        "TransactionStartTimeMs": known.started_ms,
        "ProducerId": known.producer_id,
        "ProducerEpoch": known.epoch,
        "Topics": [{"Topic": topic, "Partitions": numbers} for topic, numbers in topics.items()],
    }
