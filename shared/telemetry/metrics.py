"""Metrics of every service that connects to Kafka: its producers, its consumer, the exactly-once runtime."""

import time
from typing import Final

from shared.telemetry import catalogue
from shared.telemetry.catalogue import Metric
from shared.telemetry.instruments import Rate, ReadGauge, counter, gauge, histogram

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"
"""Outcomes of a transaction."""

NO_CAUSE: Final = "none"
STOPPED: Final = "stopped"
"""Causes that are not errors: a commit, and a transaction that was open when its partition was revoked."""


def _rate(row: Metric) -> Rate:
    rate = Rate(time.monotonic())
    ReadGauge(row).add(lambda: [((), rate.measure(time.monotonic()))])
    return rate


# Producers
RECORD_SEND = counter(catalogue.RECORD_SEND)
RECORD_RETRY = counter(catalogue.RECORD_RETRY)
RECORD_ERROR = counter(catalogue.RECORD_ERROR)
DUPLICATE_SEQUENCE = counter(catalogue.DUPLICATE_SEQUENCE)
OUT_OF_ORDER_SEQUENCE = counter(catalogue.OUT_OF_ORDER_SEQUENCE)
FENCED = counter(catalogue.FENCED)
REQUEST_LATENCY = histogram(catalogue.REQUEST_LATENCY)
RECORD_QUEUE_TIME = histogram(catalogue.RECORD_QUEUE_TIME)
REQUESTS_IN_FLIGHT = ReadGauge(catalogue.REQUESTS_IN_FLIGHT)
PRODUCE_THROTTLE_TIME = counter(catalogue.PRODUCE_THROTTLE_TIME)
TXN_INIT = histogram(catalogue.TXN_INIT)
TXN_BEGIN = histogram(catalogue.TXN_BEGIN)
TXN_SEND_OFFSETS = histogram(catalogue.TXN_SEND_OFFSETS)
TXN_COMMIT = histogram(catalogue.TXN_COMMIT)
TXN_ABORT = histogram(catalogue.TXN_ABORT)
TRANSACTIONS = counter(catalogue.TRANSACTIONS)
TRANSACTION_RECORDS = histogram(catalogue.TRANSACTION_RECORDS)
OPEN_TRANSACTION_AGE = ReadGauge(catalogue.OPEN_TRANSACTION_AGE)
INIT_WAIT = ReadGauge(catalogue.INIT_WAIT)
PRODUCER_EPOCH = ReadGauge(catalogue.PRODUCER_EPOCH)

_SEND_RATE = _rate(catalogue.RECORD_SEND_RATE)
_RETRY_RATE = _rate(catalogue.RECORD_RETRY_RATE)
_ERROR_RATE = _rate(catalogue.RECORD_ERROR_RATE)

# Credentials
CERTIFICATE_EXPIRES = gauge(catalogue.CERTIFICATE_EXPIRES)

# Consumer
RECORDS_CONSUMED = counter(catalogue.RECORDS_CONSUMED)
RECORDS_LAG = ReadGauge(catalogue.RECORDS_LAG)
LSO_LAG = ReadGauge(catalogue.LSO_LAG)
ASSIGNED_PARTITIONS = gauge(catalogue.ASSIGNED_PARTITIONS)
REBALANCES = counter(catalogue.REBALANCES)
REBALANCE_LATENCY = histogram(catalogue.REBALANCE_LATENCY)

# Runtime
RESTORE_SECONDS = histogram(catalogue.RESTORE_SECONDS)
TORN_TRANSACTIONS = counter(catalogue.TORN_TRANSACTIONS)
RESTORED_RECORDS = counter(catalogue.RESTORED_RECORDS)
RESTORE_REMAINING = ReadGauge(catalogue.RESTORE_REMAINING)
STATE_ENTRIES = ReadGauge(catalogue.STATE_ENTRIES)
STATE_BYTES = ReadGauge(catalogue.STATE_BYTES)
END_TO_END_LATENCY = histogram(catalogue.END_TO_END_LATENCY)
DEAD_LETTERS = counter(catalogue.DEAD_LETTERS)
DEDUPLICATED = counter(catalogue.DEDUPLICATED)
SOURCE_REPEATS = counter(catalogue.SOURCE_REPEATS)


def records_sent(topic: str, count: int) -> None:
    RECORD_SEND.labels(topic).inc(count)
    _SEND_RATE.record(count, time.monotonic())


def records_retried(count: int) -> None:
    RECORD_RETRY.inc(count)
    _RETRY_RATE.record(count, time.monotonic())


def records_failed(error: str, count: int) -> None:
    RECORD_ERROR.labels(error).inc(count)
    _ERROR_RATE.record(count, time.monotonic())
