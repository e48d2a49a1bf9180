"""Transactions as the cluster reports them: which are open, which hold a partition back, which hang. Pure.

Two parties know of a transaction: its coordinator (state, timeout, partitions) and the leader of each partition that it
wrote to (the first offset). A transaction that a leader holds open and no coordinator knows never ends by itself: it
hangs (KIP-664).

Invariant: nothing is concluded from a missing answer. A transaction counts as hanging only after two looks in a row: it
may end between the requests to its partition's leader and to its coordinator.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

Target = tuple[str, int]  # topic, partition

OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""The coordinator's states in which a partition may hold the transaction's records back."""
ENDING_STATES: Final = OPEN_STATES - {"Ongoing"}
"""The open states in which the outcome is decided and only markers are still to be written."""


class Transaction(msgspec.Struct, frozen=True):
    """State of a transactional.id at its coordinator (DescribeTransactions)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str  # as Kafka names it: Empty, Ongoing, PrepareCommit, CompleteAbort and so on
    coordinator: int  # the broker's id
    timeout_ms: int  # until the coordinator aborts the transaction
    start_ms: int | None  # of the current or last transaction, since 1970 UTC by the coordinator's clock
    partitions: tuple[Target, ...] = ()  # those of the open transaction whose marker has not been written

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    def age_s(self, now_ms: int) -> float:
        """Seconds since it began, at `now_ms` since 1970 UTC; 0 where the clocks disagree or it never began."""
        return 0.0 if self.start_ms is None else max(now_ms - self.start_ms, 0) / 1000


class Producer(msgspec.Struct, frozen=True):
    """State of a producer at a partition's leader (DescribeProducers)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int  # of its last batch; -1 without one
    last_timestamp_ms: int  # of its last batch or marker, since 1970 UTC; -1 without one
    coordinator_epoch: int  # of the coordinator that wrote its last marker; -1 without one
    start_offset: int | None  # the first offset of the transaction that it has open here; None without one


class Offsets(msgspec.Struct, frozen=True):
    """A partition's last stable offset and its high watermark."""

    stable: int
    end: int

    @property
    def held(self) -> int:
        """Number of offsets that read_committed consumers cannot read yet."""
        return max(self.end - self.stable, 0)


class Look(msgspec.Struct, frozen=True):
    """The cluster's answers in one round: partitions first, coordinators after them."""

    at_ms: int  # start of the round, since 1970 UTC
    brokers: frozenset[int]  # ids of those that the cluster counts as alive
    coordinators: frozenset[int]  # ids of those that listed all transactions which they coordinate
    transactions: tuple[Transaction, ...]
    offsets: dict[Target, Offsets]  # of each partition whose leader answered
    producers: dict[Target, tuple[Producer, ...]]  # of each partition whose leader was asked for them and answered
    unanswered: tuple[str, ...] = ()  # missing answers in words: brokers, partitions, topics

    @property
    def all_coordinators(self) -> bool:
        """Whether all coordinators answered: only then is a transaction known to have no coordinator."""
        return bool(self.brokers) and self.brokers <= self.coordinators


class Open(msgspec.Struct, frozen=True, order=True):
    """A transaction that a partition holds open: its producer, and its first offset there."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int

    @property
    def target(self) -> Target:
        return self.topic, self.partition


class Suspicion(msgspec.Struct, frozen=True):
    """Transactions held open without a coordinator, over successive looks."""

    suspected: frozenset[Open] = frozenset()  # as of the last look; it may include a transaction that was just ending
    hanging: frozenset[Open] = frozenset()  # suspected in two looks in a row

    def after(self, look: Look) -> "Suspicion":
        """Return the suspicion after one more look. While a coordinator is missing, no transaction becomes a suspect.

        Suspects of a partition that did not answer stay.
        """
        held = held_open(look)
        before = self.suspected | self.hanging
        stays = {one for one in before if not _over(look, one) and (one in held or not _is_known(look, one.target))}
        if not look.all_coordinators:
            return Suspicion(frozenset(stays), frozenset(stays & self.hanging))
        found = set(unclaimed(held, look.transactions))
        silent = {one for one in stays if not _is_known(look, one.target)}
        return Suspicion(frozenset(found | silent), frozenset(found & before | silent & self.hanging))


def _over(look: Look, one: Open) -> bool:
    offsets = look.offsets.get(one.target)
    return offsets is not None and offsets.stable > one.start_offset


def _is_known(look: Look, target: Target) -> bool:
    """Whether the look shows which transactions the partition holds open."""
    offsets = look.offsets.get(target)
    return offsets is not None and (offsets.held == 0 or target in look.producers)


def held_open(look: Look) -> list[Open]:
    """Return every transaction that a partition holds open, in order of partitions and offsets."""
    return sorted(
        Open(topic, partition, producer.start_offset, producer.producer_id, producer.producer_epoch)
        for (topic, partition), producers in look.producers.items()
        for producer in producers
        if producer.start_offset is not None
    )


def unclaimed(held: Collection[Open], transactions: Collection[Transaction]) -> list[Open]:
    """Return those that no coordinator has open on their partition.

    The epoch is not compared: a coordinator that is fencing has a newer one than the partition.
    """
    claimed = {(known.producer_id, target) for known in transactions if known.is_open for target in known.partitions}
    return [one for one in held if (one.producer_id, one.target) not in claimed]


class Holder(msgspec.Struct, frozen=True):
    """The transaction that a partition's last stable offset waits for."""

    open: Open
    transactional_id: str | None  # None when no coordinator knows it
    stable: int
    held: int  # offsets from the last stable offset to the high watermark


def holders(look: Look) -> list[Holder]:
    """Return the transaction that holds each last stable offset, in order of partitions."""
    first: dict[Target, Open] = {}
    for one in held_open(look):
        first.setdefault(one.target, one)
    names = {
        (known.producer_id, target): known.transactional_id
        for known in look.transactions
        if known.is_open
        for target in known.partitions
    }
    return [
        Holder(one, names.get((one.producer_id, target)), offsets.stable, offsets.held)
        for target, one in first.items()
        if (offsets := look.offsets.get(target)) is not None and offsets.held
    ]


def late(look: Look, max_timeout_ms: int) -> list[Transaction]:
    """Return transactions open for longer than the brokers' transaction.max.timeout.ms, the oldest first.

    Their coordinator cannot end them.
    """
    found = [known for known in look.transactions if known.is_open and known.age_s(look.at_ms) * 1000 > max_timeout_ms]
    return sorted(found, key=lambda known: known.start_ms or 0)


def by_coordinator(look: Look) -> Mapping[int, tuple[Transaction, ...]]:
    """Return the open transactions by coordinator; coordinators that did not answer are absent."""
    return {
        broker: tuple(known for known in look.transactions if known.coordinator == broker and known.is_open)
        for broker in look.coordinators
    }
