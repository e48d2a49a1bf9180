"""The cluster's knowledge of transactions, requested from every broker at once (KIP-664).

Uses raw requests over `Brokers`, not kafka-python's admin client (3.0.12). That client asks one broker after the other
and loses all answers with the first error. With a broker killed it returned nothing, even after a failover. Its search
for hanging transactions never looks at a partition.

Invariant: a broker that does not answer is named and hides no other broker's answer. A round sends a silent broker no
further request, so it takes little longer than one answer may.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from aiokafka.errors import NoError
from aiokafka.protocol.offset import OffsetRequest

from shared.eos.open_transactions import OPEN_STATES, Look, Offsets, Producer, Suspicion, Target, Transaction
from shared.kafka.client.brokers import Brokers, BrokerSilentError, View
from shared.kafka.client.cluster import LATEST
from shared.kafka.client.errors import error_for, error_name
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
"""The brokers create these when they are first needed; until then they do not count as missing."""
LOOK_AGAIN_S = 0.5  # a coordinator that moves may be unassigned for a moment
NAMED_MAX = 3  # partitions named for each reason
_UNSET = -1
_TRANSACTIONAL_ID_NOT_FOUND = 105  # the client library knows no errors this new
_UNKNOWN_TOPIC = "UnknownTopicOrPartitionError"

T = TypeVar("T")


class Gaps:
    """Missing answers of one round: brokers, and partitions by reason."""

    def __init__(self) -> None:
        self.brokers: dict[int, str] = {}
        self._targets: dict[str, set[Target]] = defaultdict(set)
        self._others: list[str] = []

    def partition(self, target: Target, reason: str) -> None:
        """Note a partition without an answer."""
        self._targets[reason].add(target)

    def other(self, reason: str) -> None:
        """Note any other missing answer."""
        self._others.append(reason)

    async def each(self, questions: Mapping[int, T], ask: Callable[[int, T], Awaitable[None]]) -> None:
        """Ask several brokers at once; note those that do not answer, and skip those that did not before."""

        async def one(node_id: int, question: T) -> None:
            try:
                await ask(node_id, question)
            except BrokerSilentError as error:
                self.brokers.setdefault(node_id, str(error))

        await asyncio.gather(*(one(node, question) for node, question in questions.items() if node not in self.brokers))

    def sentences(self) -> tuple[str, ...]:
        """Describe all missing answers."""
        partitions = []
        for reason, targets in self._targets.items():
            named = ", ".join(f"{topic}:{partition}" for topic, partition in sorted(targets)[:NAMED_MAX])
            more = f" and {len(targets) - NAMED_MAX} more" if len(targets) > NAMED_MAX else ""
            partitions.append(f"{named}{more}: {reason}")
        return (*(self.brokers[node_id] for node_id in sorted(self.brokers)), *self._others, *partitions)


async def look(
    brokers: Brokers,
    topics: Iterable[str],
    *,
    only_open: bool = False,
    stable_before: Mapping[Target, int] | None = None,
) -> Look:
    """Run one round: offsets and producers of all partitions, then the transactions of all coordinators.

    Args:
        brokers: connections, kept between rounds.
        topics: topics to look at.
        only_open: leave out the transactional.ids that have no transaction open.
        stable_before: last stable offsets of an earlier look. A partition whose offset has moved since is not asked for
            its producers: the transaction that it waited for has ended.

    Raises KafkaUnavailableError: no broker answers at all.
    """
    at_ms = time.time_ns() // 1_000_000
    wanted = {*topics, *INTERNAL_TOPICS}
    view = await brokers.view(wanted)
    gaps = Gaps()
    for topic, error in view.missing.items():
        if error != _UNKNOWN_TOPIC or topic not in INTERNAL_TOPICS:
            gaps.other(_missing_text(topic, error))
    for target in view.leaderless:
        gaps.partition(target, "no leader")
    # The coordinators' own log has no transactions; all that matters is whether each partition has a leader
    watched = [target for target in view.leaders if target[0] != "__transaction_state"]
    offsets = await _offsets(brokers, view, watched, gaps)
    before = stable_before or {}
    held = [
        target for target, known in offsets.items() if known.held and before.get(target, known.stable) == known.stable
    ]
    producers = await _producers(brokers, view, held, gaps)
    coordinators, transactions = await _transactions(brokers, view, gaps, only_open=only_open)
    if any(topic == "__transaction_state" for topic, _ in view.leaderless):
        coordinators = frozenset()  # some transactions have no coordinator now, and it is unknown which
    return Look(at_ms, frozenset(view.brokers), coordinators, tuple(transactions), offsets, producers, gaps.sentences())


async def look_twice(brokers: Brokers, topics: Iterable[str]) -> tuple[Look, Suspicion]:
    """Look, and look again when a transaction seems to hang: it may just have been ending.

    Raises KafkaUnavailableError: no broker answers at all.
    """
    names = list(topics)
    seen = await look(brokers, names)
    suspicion = Suspicion().after(seen)
    if suspicion.suspected:
        await asyncio.sleep(LOOK_AGAIN_S)
        seen = await look(brokers, names)
        suspicion = suspicion.after(seen)
    return seen, suspicion


async def offsets_of(brokers: Brokers, targets: Iterable[Target]) -> tuple[dict[Target, Offsets], tuple[str, ...]]:
    """Return last stable offset and high watermark of partitions, and a description of each missing answer.

    Raises KafkaUnavailableError: no broker answers at all.
    """
    wanted = list(targets)
    view, gaps = await brokers.view({topic for topic, _ in wanted}), Gaps()
    return await _offsets(brokers, view, wanted, gaps), gaps.sentences()


async def producers_of(brokers: Brokers, target: Target) -> tuple[Producer, ...]:
    """Return the producers that a partition's leader remembers (DescribeProducers).

    Raises:
        LookupError: the partition does not exist, has no leader, or its leader does not answer; the message says so.
        KafkaUnavailableError: no broker answers at all.
    """
    view, gaps = await brokers.view([target[0]]), Gaps()
    topic, partition = target
    error = view.missing.get(topic, _UNKNOWN_TOPIC)
    if error != _UNKNOWN_TOPIC:
        raise LookupError(_missing_text(topic, error))
    if target not in view.leaders:
        raise LookupError(f"there is no partition {topic}:{partition}")
    if target in view.leaderless:
        raise LookupError(f"{topic}:{partition} has no leader now: try again when it has one")
    found = await _producers(brokers, view, [target], gaps)
    if target not in found:
        raise LookupError(f"{topic}:{partition} cannot be asked for its producers: {'; '.join(gaps.sentences())}")
    return found[target]


async def _offsets(brokers: Brokers, view: View, targets: list[Target], gaps: Gaps) -> dict[Target, Offsets]:
    stable: dict[Target, int] = {}
    ends: dict[Target, int] = {}

    async def one(node_id: int, led: list[Target]) -> None:
        topics = [(topic, [(partition, LATEST) for partition in partitions]) for topic, partitions in grouped(led)]
        # Both requests are sent at once, and a broker answers in order: little can happen in between
        answers = await asyncio.gather(
            *(brokers.ask(node_id, OffsetRequest(-1, isolation, topics)) for isolation in (1, 0)),
        )
        for found, response in zip((stable, ends), answers, strict=True):
            for topic, partitions in response.topics:
                for partition, error_code, _, offset in partitions:
                    if _answered(gaps, (topic, partition), error_code):
                        found[topic, partition] = offset

    await gaps.each(view.led_by(targets), one)
    return {target: Offsets(offset, ends[target]) for target, offset in stable.items() if target in ends}


async def _producers(
    brokers: Brokers, view: View, targets: list[Target], gaps: Gaps
) -> dict[Target, tuple[Producer, ...]]:
    found: dict[Target, tuple[Producer, ...]] = {}

    async def one(node_id: int, led: list[Target]) -> None:
        topics = [{"Name": topic, "PartitionIndexes": partitions} for topic, partitions in grouped(led)]
        response = await brokers.ask(node_id, Request("DescribeProducers", 0, {"Topics": topics}))
        for topic in response["Topics"]:
            for partition in topic["Partitions"]:
                target = topic["Name"], partition["PartitionIndex"]
                if _answered(gaps, target, partition["ErrorCode"]):
                    found[target] = tuple(_producer(row) for row in partition["ActiveProducers"])

    await gaps.each(view.led_by(targets), one)
    return found


def _producer(row: Values) -> Producer:
    start = row["CurrentTxnStartOffset"]
    return Producer(
        row["ProducerId"],
        row["ProducerEpoch"],
        row["LastSequence"],
        row["LastTimestamp"],
        row["CoordinatorEpoch"],
        None if start == _UNSET else start,
    )


async def _transactions(
    brokers: Brokers, view: View, gaps: Gaps, *, only_open: bool
) -> tuple[frozenset[int], list[Transaction]]:
    """Return the coordinators that listed all of their transactions, and the transactions."""
    answered: set[int] = set()
    found: list[Transaction] = []
    states = sorted(OPEN_STATES) if only_open else []

    async def one(node_id: int, _: None) -> None:
        response = await brokers.ask(node_id, Request("ListTransactions", 0, {"StateFilters": states}))
        if response["ErrorCode"]:
            raise BrokerSilentError(node_id, f"does not list transactions: {error_of(response['ErrorCode'])}")
        names = [listed["TransactionalId"] for listed in response["TransactionStates"]]
        rows = await describe(brokers, node_id, names) if names else []
        found.extend(rows)
        answered.add(node_id)

    await gaps.each(dict.fromkeys(view.brokers), one)
    return frozenset(answered), found


async def describe(brokers: Brokers, coordinator: int, transactional_ids: list[str]) -> list[Transaction]:
    """Describe transactional.ids by their coordinator; expired ones are left out.

    Raises:
        BrokerSilentError: it does not answer, or no longer coordinates one of them.
    """
    response = await brokers.ask(
        coordinator, Request("DescribeTransactions", 0, {"TransactionalIds": transactional_ids})
    )
    found = []
    for row in response["TransactionStates"]:
        error_code, name, start_ms = row["ErrorCode"], row["TransactionalId"], row["TransactionStartTimeMs"]
        if error_code == _TRANSACTIONAL_ID_NOT_FOUND:
            continue
        if error_code:
            raise BrokerSilentError(coordinator, f"does not describe {name}: {error_of(error_code)}")
        targets = tuple(sorted((topic["Topic"], number) for topic in row["Topics"] for number in topic["Partitions"]))
        producer_id, epoch, state = row["ProducerId"], row["ProducerEpoch"], row["TransactionState"]
        timeout_ms, start = row["TransactionTimeoutMs"], None if start_ms < 0 else start_ms
        found.append(Transaction(name, producer_id, epoch, state, coordinator, timeout_ms, start, targets))
    return found


def grouped(targets: Iterable[Target]) -> list[tuple[str, list[int]]]:
    """Group partition numbers by topic, as requests need them."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in targets:
        by_topic[topic].append(partition)
    return list(by_topic.items())


def _answered(gaps: Gaps, target: Target, error_code: int) -> bool:
    if error_code:
        gaps.partition(target, error_of(error_code))
    return not error_code


def _missing_text(topic: str, error: str) -> str:
    """Say why a topic has no metadata."""
    return f"topic {topic} does not exist" if error == _UNKNOWN_TOPIC else f"topic {topic} is not described: {error}"


def error_of(error_code: int) -> str:
    """Return Kafka's name of an error code, as far as it is known here."""
    error = error_for(error_code)
    return error_name(error()) if error is not NoError else "no error"
