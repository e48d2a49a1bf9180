"""Kafka -> DataFrame: exactly the ranges of one topic that a manifest pins, committed records only.

What holds: one manifest gives the same rows in the same input partitions, on any master and whatever the cluster got
since. A record that is gone although it lies in a range fails the read; it is never left out in silence.
It must not know what the records mean.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark.manifest import Range

RECORDS_PER_TASK = 1_000_000
"""How many offsets one task reads at most: a fixed figure, so that the split does not depend on the machine."""
RECORDS_AT_ONCE = 100_000
"""Up to so many offsets of one topic are worth one task only, and one file for each table and day."""

POLL_TIMEOUT_MS = 30_000  # all that is asked for is there; only a broker's loss makes it wait, and is over in 10 s
_FETCH_BYTES = 8 * 1024 * 1024
_FETCHING: Final = {
    # For each poll, Spark's source asks twice for offsets and drops what was fetched beyond it: few large polls
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
    "kafka.fetch.max.bytes": str(4 * _FETCH_BYTES),
    # Those questions wait behind the fetch that the client sends ahead. Nothing new has to come: all ends are stable
    "kafka.fetch.max.wait.ms": "1",
}


@dataclass(frozen=True, slots=True)
class TlsBrokers:
    """Brokers that know their clients by certificates. The files are read on driver and workers alike.

    Attributes:
        bootstrap_servers: brokers, comma separated.
        ca_file: certificates that the brokers are trusted by, PEM.
        identity_file: private key and certificate chain, PEM.
    """

    bootstrap_servers: str
    ca_file: str
    identity_file: str


Brokers = str | TlsBrokers
"""Brokers, comma separated, or those with TLS."""

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def offsets(ranges: Mapping[int, Range]) -> dict[int, tuple[int, int]]:
    """What there is to read, by partition: first offset and the one after the last; nothing where there is nothing.

    What expired before the cut was taken lies below `beginning` and cannot be read.
    """
    found = {partition: (max(pinned.start, pinned.beginning), pinned.end) for partition, pinned in ranges.items()}
    return {partition: (begin, end) for partition, (begin, end) in sorted(found.items()) if begin < end}


def connection(brokers: Brokers) -> dict[str, str]:
    """How Spark's Kafka client is to connect. Pure. PEM stores: KIP-651."""
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


def read(spark: SparkSession, brokers: Brokers, topic: str, ranges: Mapping[int, Range]) -> DataFrame | None:
    """One topic's committed records between pinned offsets, with Spark's names for a record's parts (COLUMNS).

    Args:
        spark: the session, with the jars of Spark's Kafka source.
        brokers: whom to ask.
        topic: its name.
        ranges: by partition, as the manifest has them.

    Returns:
        The records, lazily; None where the ranges hold nothing at all.
    """
    pinned = offsets(ranges)
    if not pinned:
        return None
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
