"""Fetch requests and their responses.

Invariant: only the leader of a partition answers. Version 10 is the last with that rule: from version 11 on, any
replica answers a consumer, and a client with an old leader in its metadata reads from a follower (KIP-392).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiokafka.errors import NoError

from shared.eos.errors import FatalError
from shared.kafka.client.errors import error_for
from shared.kafka.client.requests import Request

FETCH_VERSION: Final = 10
FETCH_BYTES: Final = 8 * 1024 * 1024  # per request; at most two rounds from three brokers are in memory
MIN_BYTES: Final = 1  # any record ends the wait


class Fetched(NamedTuple):
    """One partition's part of a fetch response.

    Attributes:
        target: topic and partition.
        error_code: Kafka's; the other fields have no meaning unless it is 0.
        aborted: (producer_id, first offset) of the aborted transactions in it; only when read_committed.
        data: the batches as on disk; the last one may be cut off.
    """

    target: tuple[str, int]
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    data: bytes


def fetch_request(
    positions: Mapping[tuple[str, int], int], *, committed: bool, wait_ms: int, partition_bytes: int
) -> Request:
    """Return a request to the leader of partitions, without a fetch session (KIP-227).

    Args:
        positions: the offset to read from, by topic and partition.
        committed: read_committed; else read_uncommitted.
        wait_ms: milliseconds that a broker without new records may wait.
        partition_bytes: maximum bytes from each partition. At least one batch is returned of the first partition that
            has any; a batch of another partition may be cut off.
    """
    topics: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, partition), offset in positions.items():
        topics[topic].append({"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": partition_bytes})
    return Request(
        "Fetch",
        FETCH_VERSION,
        {
            "ReplicaId": -1,
            "MaxWaitMs": wait_ms,
            "MinBytes": MIN_BYTES,
            "MaxBytes": FETCH_BYTES,
            "IsolationLevel": int(committed),
            "SessionId": 0,
            "SessionEpoch": -1,
            "Topics": [{"Topic": topic, "Partitions": rows} for topic, rows in topics.items()],
        },
    )


def fetched(response: Mapping[str, Any]) -> list[Fetched]:
    """Return the parts of a response to `fetch_request`, with those that failed.

    Raises:
        KafkaError: the whole request failed.
    """
    error = error_for(response["ErrorCode"])
    if error is not NoError:
        raise error("a fetch failed")
    return [
        Fetched(
            (topic["Topic"], part["PartitionIndex"]),
            part["ErrorCode"],
            part["HighWatermark"],
            part["LastStableOffset"],
            [(one["ProducerId"], one["FirstOffset"]) for one in part["AbortedTransactions"] or ()],
            part["Records"] or b"",
        )
        for topic in response["Responses"]
        for part in topic["Partitions"]
    ]


def out_of_range(target: tuple[str, int], offset: int, start: int, end: int) -> FatalError:
    """Make the error for an offset that a log, from `start` to `end`, does not have."""
    at, group_offset = "{}:{}".format(*target), end if offset > end else start
    lost = "records that were read are lost" if offset > end else "the records between have expired unread"
    return FatalError(
        f"{at} was read up to {offset}, and its log begins at {start} and ends at {end}: {lost}. Find out what they "
        f"were, then set the group's offset of {at} to {group_offset} with kafka-consumer-groups --reset-offsets"
    )
