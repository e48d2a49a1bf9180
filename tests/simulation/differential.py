"""The simulated brokers and a real one, asked the same: where they answer differently, the model is wrong.

A sequence runs on the model first, in virtual time, and then on the real broker. Both run one broker, so nothing
depends on elections. Markers are written after EndTxn is answered: before a request that could see half of them, a
caller waits until all transactions of the sequence are complete.

Invariant: a request is asked again only for codes that Kafka gives while it has not finished something else.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.scope import now_ms
from tests.simulation import errors
from tests.simulation.connection import ANSWER_S, Connection, codes, connected
from tests.simulation.loop import virtual_time
from tests.simulation.network import Address, Network
from tests.simulation.normalised import Names, differing, normalised
from tests.simulation.sequences import TIMEOUT_MS, sequence
from tests.simulation.symbols import At, Data, Fault, Given, Places, Step, Target, TopicId, places_of
from tests.simulation.world import ADDRESSES, started

ASKED_AGAIN: Final = {
    errors.CONCURRENT_TRANSACTIONS: "the coordinator has not finished what was asked before",
    errors.COORDINATOR_LOAD_IN_PROGRESS: "it is reading its log",
    errors.COORDINATOR_NOT_AVAILABLE: "the first request for a coordinator creates its topic",
    errors.NOT_COORDINATOR: "it does not know yet that it is one",
}
"""Codes that say `later`, with what the broker waits for."""
_RETRY_S: Final = 0.003
_EFFECT_S: Final = 3.0
"""How long a request whose answer is lost may take on the real broker."""
_SESSION_S: Final = 60.0
"""Of members of the newer protocol on the model: longer than all waits of a sequence, which take no time there."""
_LOST_S: Final = 0.02
"""How long it certainly may."""
_OWN_ID: Final = {
    "InitProducerId": "TransactionalId",
    "AddPartitionsToTxn": "V3AndBelowTransactionalId",
    "AddOffsetsToTxn": "TransactionalId",
    "EndTxn": "TransactionalId",
}
"""The transactional.id in requests whose coordinator waits for that transaction, by CONCURRENT_TRANSACTIONS."""


class Caller:
    """One side of a comparison: it runs a sequence on one broker.

    Args:
        expected: what the other broker's state was after each request whose answer is lost; None on the first side.
    """

    def __init__(
        self, address: Address, places: Places, steps: Sequence[Step], expected: Sequence[Any] | None = None
    ) -> None:
        self._places = places
        self._address = address
        self._steps = steps
        self._expected = None if expected is None else deque(expected)
        self._answers: list[list[Values]] = []
        self._names = Names({})
        self._topic_ids: dict[str, bytes] = {}
        self.seen: list[Any] = []
        self.states: list[Any] = []
        self._transactional_ids = _named(steps, "TransactionalId")
        self._groups = _named(steps, "GroupId")

    async def run(self) -> None:
        """Run all steps, end what is open, and look at what is there."""
        self._main, self._other = [await connected(self._address) for _ in range(2)]
        beginning = await self._beginning()
        self._topic_ids = await self._ids()
        self._names = Names(beginning, {topic_id: topic for topic, topic_id in self._topic_ids.items()})
        for step in self._steps:
            self.seen.append(await self._step(step))
        for name in self._transactional_ids:
            await self._settled()
            values = {"TransactionalId": name, "TransactionTimeoutMs": TIMEOUT_MS}
            self.seen.append(normalised(self._names, await self._ask("InitProducerId", 1, values)))
        await self._settled()
        self.seen += [await self._state(), await self._logs()]
        self._main.close()
        self._other.close()

    async def _ask(self, api: str, version: int, values: Values, connection: Connection | None = None) -> Values:
        """Ask until the answer is another one than `later`."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = await (connection or self._main).ask(api, version, values)
            if codes(answer).isdisjoint(ASKED_AGAIN) or time.monotonic() > deadline:
                return answer
            await asyncio.sleep(_RETRY_S)

    async def _beginning(self) -> dict[Target, int]:
        """Begin with a record in each partition, so that both brokers have some before the sequence."""
        batch = record_batch([(b"k", b"v")], timestamp_ms=now_ms()).data
        parts = [{"Index": number, "Records": batch} for number in self._places.numbers]
        topics = [{"Name": topic, "PartitionData": parts} for topic in self._places.topics]
        values = {"TransactionalId": None, "Acks": -1, "TimeoutMs": 5000, "TopicData": topics}
        deadline = time.monotonic() + ANSWER_S
        while (found := codes(await self._ask("Produce", 8, values))) != {errors.NONE}:
            assert time.monotonic() < deadline, f"no record can be written: {found}"
            await asyncio.sleep(_RETRY_S)  # a topic that was just made has no leader yet
        for kind, names in ((0, self._groups), (1, self._transactional_ids)):
            for name in names:
                await self._ask("FindCoordinator", 1, {"Key": name, "KeyType": kind})
        return await self._ends(0)

    async def _ids(self) -> dict[str, bytes]:
        topics = [{"Name": topic} for topic in self._places.topics]
        answer = await self._ask("Metadata", 12, {"Topics": topics, "AllowAutoTopicCreation": False})
        return {topic["Name"]: topic["TopicId"] for topic in answer["Topics"]}

    async def _ends(self, level: int) -> dict[Target, int]:
        answer = await self._ask("ListOffsets", 5, self._ends_request(level))
        return {
            (topic["Name"], part["PartitionIndex"]): part["Offset"]
            for topic in answer["Topics"]
            for part in topic["Partitions"]
        }

    def _ends_request(self, level: int) -> Values:
        parts = [{"PartitionIndex": number, "Timestamp": -1} for number in self._places.numbers]
        topics = [{"Name": topic, "Partitions": parts} for topic in self._places.topics]
        return {"ReplicaId": -1, "IsolationLevel": level, "Topics": topics}

    async def _step(self, step: Step) -> Any:
        own_id = step.values.get(_OWN_ID.get(step.api, ""))
        await self._settled(None if step.fault is Fault.LOST else own_id)
        values = self._resolved(step.values)
        if step.fault is Fault.LOST:
            self._main.send(step.api, step.version, values)
            self._main.close()
            self._main = await connected(self._address)
            self._answers.append([])
            return await self._after_loss()
        answers = [await self._ask(step.api, step.version, values)]
        if step.fault is Fault.TWICE:
            answers.append(await self._ask(step.api, step.version, values, self._other))
        self._answers.append(answers)
        return [normalised(self._names, answer) for answer in answers]

    async def _after_loss(self) -> Any:
        """The state when a lost request has had its effect, which the first side has waited for in virtual time."""
        if self._expected is None:
            await asyncio.sleep(_EFFECT_S)
            await self._settled()
            self.states.append(await self._state())
            return self.states[-1]
        expected = self._expected.popleft()
        deadline = time.monotonic() + _EFFECT_S
        await asyncio.sleep(_LOST_S)
        while True:
            await self._settled()
            state = await self._state()
            if state == expected or time.monotonic() > deadline:
                return state
            await asyncio.sleep(_RETRY_S)

    async def _settled(self, but: str | None = None) -> None:
        """Wait until each transaction but one is open or complete: then its markers are written."""
        names = [name for name in self._transactional_ids if name != but]
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = await self._ask("DescribeTransactions", 0, {"TransactionalIds": names})
            if not any(one["TransactionState"].startswith("Prepare") for one in answer["TransactionStates"]):
                return
            assert time.monotonic() < deadline, f"a transaction does not end: {answer}"
            await asyncio.sleep(_RETRY_S)

    async def _state(self) -> Values:
        """All that the broker knows of the sequence's transactions, groups and producers, without the records."""
        topics = [{"Name": topic, "PartitionIndexes": list(self._places.numbers)} for topic in self._places.topics]
        asked: list[tuple[str, int, Values]] = [
            ("DescribeTransactions", 0, {"TransactionalIds": self._transactional_ids}),
            *(("OffsetFetch", 3, {"GroupId": group, "Topics": None}) for group in self._groups),
            *(("ListOffsets", 5, self._ends_request(level)) for level in range(2)),
            ("DescribeProducers", 0, {"Topics": topics}),
            ("DescribeGroups", 4, {"Groups": self._groups}),
            ("ConsumerGroupDescribe", 1, {"GroupIds": self._groups}),
        ]
        return {
            f"{api} {number}": normalised(self._names, await self._ask(api, version, values))
            for number, (api, version, values) in enumerate(asked)
        }

    async def _logs(self) -> Values:
        """All records since the beginning, as either kind of reader gets them."""
        found = {}
        for level in range(2):
            for target, beginning in self._names.beginning.items():
                part = {"Partition": target[1], "FetchOffset": beginning, "PartitionMaxBytes": 2**24}
                values = {
                    "ReplicaId": -1,
                    "MaxWaitMs": 0,
                    "MinBytes": 0,
                    "MaxBytes": 2**24,
                    "IsolationLevel": level,
                    "Topics": [{"Topic": target[0], "Partitions": [part]}],
                }
                found[f"{target} {level}"] = normalised(self._names, await self._ask("Fetch", 11, values))
        return found

    def _resolved(self, value: Any) -> Any:
        match value:
            case Given():
                found = self._answers[value.step][value.copy][value.name]
                found = found + value.more if value.more else found
            case At():
                found = self._names.beginning[value.target] + value.more
            case TopicId():
                found = self._topic_ids[value.topic]
            case Data():
                found = self._data(value)
            case dict():
                found = {name: self._resolved(one) for name, one in value.items()}
            case list():
                found = [self._resolved(one) for one in value]
            case _:
                found = value
        return found

    def _data(self, data: Data) -> bytes:
        attributes = TRANSACTIONAL if data.is_transactional else 0
        return record_batch(
            [(b"k", value) for value in data.values],
            self._resolved(data.producer_id),
            self._resolved(data.epoch),
            data.sequence,
            attributes=attributes,
            timestamp_ms=now_ms(),
        ).data


def _named(steps: Sequence[Step], field: str) -> list[str]:
    """The transactional ids or groups of a sequence."""
    found = {step.values.get(field) for step in steps if step.api != "DescribeTransactions"}
    return sorted(name for name in found if name)


class Difference(NamedTuple):
    """The first answer in which the model and the broker differ.

    Attributes:
        request: the step, or what was looked at after the last one.
        fields: each with the model's value and the broker's.
    """

    seed: int
    request: Any
    fields: list[str]


def compare(
    seed: int, prefix: str, broker: Callable[[Caller], None], address: Address, *, faults: bool
) -> Difference | None:
    """Run a sequence on the model and on a broker; None when they agree.

    Args:
        broker: runs a caller on the real broker's loop.
        address: the real broker's.
    """
    steps = sequence(seed, prefix, faults=faults)
    model = _on_model(seed, steps)
    real = Caller(address, places_of(seed), steps, model.states)
    broker(real)
    for number, (one, other) in enumerate(zip(model.seen, real.seen, strict=True)):
        if one != other:
            request = f"{number}: {steps[number]}" if number < len(steps) else "the end"
            return Difference(seed, request, list(differing(one, other)))
    return None


def _on_model(seed: int, steps: Sequence[Step]) -> Caller:
    with virtual_time() as loop:
        chance = random.Random(seed)
        network = Network(loop, chance)

        async def run() -> Caller:
            await started(network, chance, brokers=1, session_s=_SESSION_S)
            caller = Caller(ADDRESSES[0], places_of(seed), steps)
            await caller.run()
            return caller

        return loop.run_until_complete(run())
