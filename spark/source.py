"""Kafka to DataFrame: exactly the ranges of one topic that a manifest pins, committed records only.

Invariant: one manifest gives the same rows in the same input partitions, on any master and whatever was written since.
A range that begins below the log's beginning, or ends above its end, fails the read. Within a range, Spark's source
passes over offsets without a record: `spark.land` counts the rows and compares them with the offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark.manifest import Range

RECORDS_PER_TASK = 1_000_000  # offsets of one task at most: fixed, so that the split does not depend on the machine
RECORDS_AT_ONCE = 100_000  # up to so many offsets of one topic are worth one task only, and one file per table and day
POLL_TIMEOUT_MS = 30_000  # all offsets exist; only a broker's loss makes it wait, and is over in 10 s
_FETCH_BYTES = 8 * 1024 * 1024
_FETCHING: Final = {
    # For each poll, Spark's source asks twice for offsets and drops what was fetched beyond it: few large polls
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
    "kafka.fetch.max.bytes": str(4 * _FETCH_BYTES),
    # Those requests wait behind the fetch that the client sends ahead. It need not wait for more: all ends are stable
    "kafka.fetch.max.wait.ms": "1",
}


@dataclass(frozen=True, slots=True)
class TlsBrokers:
    """Brokers that identify their clients by certificates. The PEM files are read on driver and workers alike."""

    bootstrap_servers: str
    ca_file: str  # certificates that the brokers are trusted by
    identity_file: str  # private key and certificate chain


Brokers = str | TlsBrokers  # a str: brokers, comma separated

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def offsets(ranges: Mapping[int, Range]) -> dict[int, tuple[int, int]]:
    """Return the offsets to read, by partition: the first and the one after the last; none for an empty range.

    Records that expired before the cut was taken are below `beginning` and cannot be read.
    """
    found = {partition: (pinned.first, pinned.end) for partition, pinned in ranges.items()}
    return {partition: (begin, end) for partition, (begin, end) in sorted(found.items()) if begin < end}


def connection(brokers: Brokers) -> dict[str, str]:
    """Return the configuration of Spark's Kafka client. Pure. PEM stores: KIP-651."""
    if isinstance(brokers, str):
        return {"kafka.bootstrap.servers": brokers}
    return {
        "kafka.bootstrap.servers": brokers.bootstrap_servers,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": brokers.ca_file,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": brokers.identity_file,
    }


def read(spark: SparkSession, brokers: Brokers, topic: str, pinned: Mapping[int, tuple[int, int]]) -> DataFrame:
    """Read one topic's committed records between offsets, as `offsets` returns them, lazily, as COLUMNS.

    The session needs the jars of Spark's Kafka source.
    """
    reader = spark.read.format("kafka").options(
        **{
            **connection(brokers),
            # Spark's default shows records of aborted and of open transactions (KIP-98)
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: list(pinned)}),
            "startingOffsets": json.dumps({topic: {str(number): begin for number, (begin, _) in pinned.items()}}),
            "endingOffsets": json.dumps({topic: {str(number): end for number, (_, end) in pinned.items()}}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
            "maxRecordsPerPartition": str(RECORDS_PER_TASK),
            **_FETCHING,
        }
    )
    frame = reader.load().select(*COLUMNS)
    width = sum(end - begin for begin, end in pinned.values())
    return frame.coalesce(1) if width <= RECORDS_AT_ONCE else frame
