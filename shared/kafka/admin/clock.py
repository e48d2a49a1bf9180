"""The brokers' clock, and the check that refuses a clock that differs from it.

Writers stamp records, and services compare those stamps to decide what is due, late or expired. On a machine with a
wrong clock all these decisions would be wrong without any error. The leader of the controllers' quorum reports its time
in DescribeQuorum (KIP-836).
"""

import time
from typing import Any, Final

from aiokafka.errors import LeaderNotAvailableError
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.txn_requests import NO_TAGS, OneVersion

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_METADATA_TOPIC: Final = "__cluster_metadata"
_REPLICAS = CompactArray(
    ("replica_id", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
    _TAGS,
)


class ClockError(Exception):
    """This machine's clock and the brokers' are too far apart; the message says how far, and what to do."""


class DescribeQuorumResponse(Response):  # type: ignore[misc] # the client ships no types
    """The controllers and their progress; the leader's own timestamp is its current time."""

    API_KEY = 55
    API_VERSION = 1
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic_name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("current_voters", _REPLICAS),
                        ("observers", _REPLICAS),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeQuorumRequest(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """For any broker, which forwards it to the quorum's leader; needs the right to describe the cluster."""

    API_KEY = 55
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeQuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_name", _TEXT), ("partitions", CompactArray(("partition_index", Int32), _TAGS)), _TAGS),
        ),
        _TAGS,
    )


async def check_clock(bootstrap_servers: Bootstrap, skew_s_max: float) -> None:
    """Refuse a clock that differs from the controllers'.

    Args:
        skew_s_max: seconds that this machine's clock may be ahead or behind.

    Raises:
        ValueError: skew_s_max is not above 0; the message says what to set.
        ClockError: the difference is larger.
        KafkaUnavailableError: no broker answers.
    """
    if not skew_s_max > 0:  # NaN is refused as well: every clock would pass
        raise ValueError(f"ONCE_CLOCK_SKEW_S_MAX is {skew_s_max:g}: set it above 0")
    async with Cluster(bootstrap_servers) as cluster:

        async def attempt() -> tuple[float, int, float]:
            before_ms = time.time() * 1000
            response = await cluster.send_to_any(
                DescribeQuorumRequest([(_METADATA_TOPIC, [(0, NO_TAGS)], NO_TAGS)], NO_TAGS)
            )
            return before_ms, _leaders_ms(response), time.time() * 1000

        before_ms, theirs_ms, after_ms = await cluster.retry(attempt, "the controllers' clock cannot be read")
    if theirs_ms > after_ms + skew_s_max * 1000:
        raise _refused(f"{(theirs_ms - after_ms) / 1000:.0f} s behind", skew_s_max)
    if theirs_ms < before_ms - skew_s_max * 1000:
        raise _refused(f"{(before_ms - theirs_ms) / 1000:.0f} s ahead of", skew_s_max)


def _leaders_ms(response: Any) -> int:
    """Return milliseconds since 1970 UTC, by the clock of the quorum's leader.

    Raises:
        KafkaError: the broker's answer is an error, or the quorum temporarily has no leader.
    """
    check(response.error_code, "the quorum cannot be described")
    [(_, [(_, error_code, leader_id, _, _, voters, *_)], _)] = response.topics
    check(error_code, "the quorum cannot be described")
    times = [row[3] for row in voters if row[0] == leader_id]
    if not times:
        raise LeaderNotAvailableError("the quorum has no leader now")
    [at_ms] = times
    return int(at_ms)


def _refused(how: str, skew_s_max: float) -> ClockError:
    return ClockError(
        f"this machine's clock is {how} the brokers', and {skew_s_max:g} s are allowed (ONCE_CLOCK_SKEW_S_MAX): set "
        "the one that is wrong, best by NTP on all machines"
    )
