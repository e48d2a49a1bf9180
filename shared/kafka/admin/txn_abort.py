"""Ends a transaction from outside, for an operator: through its coordinator, or by a marker on one partition.

A transaction that its coordinator knows is ended by InitProducerId under its transactional.id, which fences its
producer and aborts on every partition (KIP-98). For one that no coordinator knows, only an ABORT marker on the
partition is left (WriteTxnMarkers, as `kafka-transactions.sh abort` writes it: KIP-664).

Invariant: success is read from the partition afterwards, not from the answer to a request.
"""

import asyncio
import time
from collections.abc import Collection
from typing import NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from shared.eos.open_transactions import Offsets, Open, Producer, Target
from shared.kafka.admin.transactions import error_of, offsets_of, producers_of
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.errors import error_for, is_retriable
from shared.kafka.client.requests import Request

POLL_S = 0.1


class AbortFailedError(Exception):
    """The transaction was not ended; the message says why, and what to do."""


class Ended(NamedTuple):
    """A partition's state after a transaction was ended on it.

    Attributes:
        held_by: the first offset of another transaction that now holds the last stable offset; None without one.
    """

    target: Target
    offsets: Offsets
    held_by: int | None


async def write_abort_marker(brokers: Brokers, one: Open, producer: Producer) -> None:
    """End a transaction on one partition, bypassing its coordinator.

    Args:
        brokers: connections.
        one: the transaction, as the partition holds it open.
        producer: its producer, as the partition's leader remembers it.

    Raises:
        AbortFailedError: the leader refused the marker, or the partition has no leader.
        BrokerSilentError: no answer; the marker may have been written.
        KafkaUnavailableError: no broker answers at all.
    """
    view = await brokers.view([one.topic])
    leader = next(iter(view.led_by([one.target])), None)
    if leader is None:
        raise AbortFailedError(f"{one.topic}:{one.partition} has no leader now: try again when it has one")
    # The marker's epoch must not be older than the last coordinator's; a coordinator without the transaction sends none
    coordinator_epoch = max(producer.coordinator_epoch, 0)
    identity = one.producer_id, one.producer_epoch
    for error_code in await write_marker(brokers, leader, one.target, identity, coordinator_epoch, commit=False):
        if error_code:
            raise AbortFailedError(
                f"broker {leader} refused the marker on {one.topic}:{one.partition}: "
                f"{error_of(error_code)}. Look again with `once txn find-hanging`"
            )


async def write_marker(
    brokers: Brokers, leader: int, target: Target, producer: tuple[int, int], coordinator_epoch: int, *, commit: bool
) -> list[int]:
    """Write a marker to one partition; needs the right to alter the cluster.

    Args:
        producer: its id and epoch.

    Returns:
        The leader's error code for the partition; 0 when it wrote the marker.

    Raises:
        BrokerSilentError: no answer; the marker may have been written.
    """
    marker = {
        "ProducerId": producer[0],
        "ProducerEpoch": producer[1],
        "TransactionResult": commit,
        "Topics": [{"Name": target[0], "PartitionIndexes": [target[1]]}],
        "CoordinatorEpoch": coordinator_epoch,
    }
    # Version 2 adds that the marker's epoch must be newer than the producer's (KIP-890). An operator who ends a hanging
    # transaction knows none
    response = await brokers.ask(leader, Request("WriteTxnMarkers", 1, {"Markers": [marker]}))
    topics = [topic for answered in response["Markers"] for topic in answered["Topics"]]
    return [partition["ErrorCode"] for topic in topics for partition in topic["Partitions"]]


async def fence(brokers: Brokers, transactional_id: str, timeout_ms: int, *, deadline_s: float) -> tuple[int, int]:
    """Fence a transactional.id's producer and abort its open transaction, as a new owner would.

    Args:
        brokers: connections.
        transactional_id: one that a coordinator knows; an unknown one would be created.
        timeout_ms: its transaction.timeout.ms, which stays as it is.
        deadline_s: seconds until the coordinator must have aborted.

    Returns:
        The producer id, and the epoch below which every producer is fenced.

    Raises:
        AbortFailedError: the coordinator refused, or did not end it in time.
        KafkaUnavailableError: no broker answers at all.
    """
    deadline = time.monotonic() + deadline_s
    attempt = 0
    while True:
        try:
            return await _init_producer_id(brokers, transactional_id, timeout_ms, attempt)
        except (BrokerSilentError, KafkaError) as error:
            if isinstance(error, KafkaError) and not is_retriable(error):
                raise AbortFailedError(f"the coordinator refused to fence {transactional_id}: {error!r}") from error
            if time.monotonic() > deadline:
                raise AbortFailedError(
                    f"{transactional_id} was not ended within {deadline_s:g} s ({error!r}): its coordinator cannot "
                    "write the markers. See `once status` for brokers that are down, then try again"
                ) from error
        attempt += 1
        await asyncio.sleep(POLL_S)


async def _init_producer_id(brokers: Brokers, transactional_id: str, timeout_ms: int, attempt: int) -> tuple[int, int]:
    alive = sorted((await brokers.view([])).brokers)
    asked = alive[attempt % len(alive)]
    found = await brokers.ask(asked, FindCoordinatorRequest(transactional_id, CoordinationType.TRANSACTION))
    _check(found.error_code)
    response = await brokers.ask(found.coordinator_id, InitProducerIdRequest(transactional_id, timeout_ms))
    _check(response.error_code)
    return response.producer_id, response.producer_epoch


def _check(error_code: int) -> None:
    if error_code:
        raise error_for(error_code)(error_of(error_code))


async def wait_ended(brokers: Brokers, opened: Collection[Open], *, deadline_s: float) -> list[Ended]:
    """Wait until none of these is open, and no last stable offset waits for one of them.

    Args:
        brokers: connections.
        opened: what was ended, one at most for each partition and offset.
        deadline_s: seconds.

    Raises:
        AbortFailedError: one is still open at the deadline.
        KafkaUnavailableError: no broker answers at all.
    """
    deadline = time.monotonic() + deadline_s
    left = dict.fromkeys(opened)
    ended: list[Ended] = []
    while True:
        for one in list(left):
            found = await _ended(brokers, one)
            if found is not None:
                ended.append(found)
                del left[one]
        if not left:
            return ended
        if time.monotonic() > deadline:
            named = ", ".join(f"{one.topic}:{one.partition} from offset {one.start_offset}" for one in left)
            raise AbortFailedError(f"still open after {deadline_s:g} s: {named}. Look again with `once txn list`")
        await asyncio.sleep(POLL_S)


async def _ended(brokers: Brokers, one: Open) -> Ended | None:
    """Return the partition's state once the transaction has ended there; None before, or without an answer."""
    try:
        producers = await producers_of(brokers, one.target)
    except LookupError:
        return None
    starts = {known.start_offset: known.producer_id for known in producers if known.start_offset is not None}
    offsets = (await offsets_of(brokers, [one.target]))[0].get(one.target)
    if offsets is None or starts.get(one.start_offset) == one.producer_id:
        return None
    held_by = min(starts, default=None)
    if offsets.stable > one.start_offset or (held_by is not None and held_by < one.start_offset):
        return Ended(one.target, offsets, held_by)
    return None
