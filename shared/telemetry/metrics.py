"""The one catalogue of metrics: every service's figures are named, described and made here.

Names are the Java client's in Prometheus' units where it has one (`records-consumed-total` is
`once_records_consumed_total`, `txn-commit-time-ns-total` is `once_txn_commit_seconds`), so that whoever knows
Kafka's figures knows these. What holds: every metric is in `CATALOGUE`, from which docs/metrics.md is
generated; labels have few values (topics, partitions, reasons, routes), never a payment or an account. It must
not know who sets a metric.
"""

from typing import Final, Literal, NamedTuple

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics

Kind = Literal["counter", "gauge", "histogram"]

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"

_TXN_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RESTORE_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_HTTP_BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

# One more series for each child, and nobody reads it. The function has no annotations
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metric(NamedTuple):
    """One row of the catalogue.

    Attributes:
        name: as scraped, units last.
        help: one sentence; a full stop ends it.
        labels: label names, in the order `labels()` takes them.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_rows: list[Metric] = []


def _counter(name: str, text: str, *labels: str) -> Counter:
    _rows.append(Metric(name, "counter", labels, text))
    return Counter(name, text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    _rows.append(Metric(name, "gauge", labels, text))
    return Gauge(name, text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, *labels: str, buckets_s: tuple[float, ...] = _TXN_BUCKETS_S) -> Histogram:
    _rows.append(Metric(name, "histogram", labels, text))
    return Histogram(name, text, labels, registry=REGISTRY, buckets=buckets_s)


# Records
RECORDS_CONSUMED = _counter(
    "once_records_consumed_total",
    "Records taken from input partitions and processed, committed or not.",
    "topic",
)
RECORD_SEND = _counter("once_record_send_total", "Records acknowledged by the brokers.", "topic")
RECORD_ERROR = _counter(
    "once_record_error_total", "Records that the brokers refused or never acknowledged, by error.", "error"
)
RECORD_RETRY = _counter("once_record_retry_total", "Records sent again after a retriable error.")
DEAD_LETTERS = _counter(
    "once_dead_letters_total", "Records written to the dead-letter topic in committed transactions.", "reason"
)
DEDUPLICATED = _counter("once_deduplicated_total", "Repeats of accepted payments in committed transactions.")

# Transactions
TRANSACTIONS = _counter(
    "once_transactions_total", "Transactions ended, by outcome: committed, aborted or unknown.", "outcome"
)
TXN_INIT_SECONDS = _histogram("once_txn_init_seconds", "Time of InitProducerId, fencing the predecessor included.")
TXN_SEND_OFFSETS_SECONDS = _histogram(
    "once_txn_send_offsets_seconds", "Time to add the consumed offsets to the transaction."
)
TXN_COMMIT_SECONDS = _histogram("once_txn_commit_seconds", "Time of EndTxn when committing.")
TXN_ABORT_SECONDS = _histogram("once_txn_abort_seconds", "Time of EndTxn when aborting.")
FENCED = _counter("once_fenced_total", "Times that this producer was fenced by a newer epoch or generation.")

# Partitions
ASSIGNED_PARTITIONS = _gauge("once_assigned_partitions", "Input partitions assigned to this instance.")
REBALANCE = _counter("once_rebalance_total", "Rebalances of the consumer group that this instance went through.")
RECORDS_LAG = _gauge(
    "once_records_lag", "Offsets between the position and the last stable offset.", "topic", "partition"
)
RESTORE_SECONDS = _histogram(
    "once_restore_seconds", "Time to restore a partition's state.", buckets_s=_RESTORE_BUCKETS_S
)
RESTORED_RECORDS = _counter("once_restored_records_total", "Changelog records read to restore state.")

# The gateway's HTTP side
HTTP_REQUESTS = _counter(
    "once_http_requests_total",
    "Requests answered, by route template and status code.",
    "method",
    "route",
    "status",
)
HTTP_REQUEST_SECONDS = _histogram(
    "once_http_request_seconds", "Time from request to answer.", "method", "route", buckets_s=_HTTP_BUCKETS_S
)
HTTP_REQUESTS_IN_FLIGHT = _gauge("once_http_requests_in_flight", "Payments that wait for the brokers' answer.")
HTTP_PAYMENTS_REFUSED = _counter(
    "once_http_payments_refused_total",
    "Payments that the gateway refused or could not take, by reason.",
    "reason",
)

# The outbox
EFFECTS = _counter(
    "once_effects_total",
    "Effects with a result in committed transactions, by kind and state: sent, failed or in_doubt.",
    "kind",
    "state",
)
EFFECT_CALLS = _counter(
    "once_effect_calls_total",
    "Calls to the outside, by channel and outcome: delivered, retriable, refused or unknown.",
    "channel",
    "outcome",
)
EFFECT_CALL_SECONDS = _histogram(
    "once_effect_call_seconds", "Time of a call to the outside.", "channel", buckets_s=_HTTP_BUCKETS_S
)
EFFECTS_REPEATED = _counter(
    "once_effects_repeated_total", "Requests whose effect was known already: a replay, or work of a predecessor."
)
EFFECTS_RESENT = _counter(
    "once_effects_resent_total", "Calls made although an earlier one may have been taken by a destination without keys."
)
EFFECTS_WAITING = _gauge("once_effects_waiting", "Effects that wait for another try, by partition.", "partition")
CIRCUITS_OPEN = _gauge("once_effect_circuits_open", "Destinations that are left alone after failures in a row.")
REDIS_TRUSTED = _gauge(
    "once_redis_trusted", "1 while the claims in Redis can be relied on; at 0 the outbox sends nothing."
)
REDIS_DISTRUSTED = _counter(
    "once_redis_distrusted_total", "Times that Redis was found flushed, restarted, failed over or silent."
)
REDIS_REBUILT = _counter(
    "once_redis_rebuilt_total", "Times that a partition's claims were rebuilt from effects.results."
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(_rows)
