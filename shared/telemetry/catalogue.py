"""The catalogue of metrics: name, type, unit, labels and meaning of every exported value. Pure.

Client metrics have the names of Kafka's Java client in Prometheus' base units (`txn-commit-time-ns-total` is
`kafka_producer_txn_commit_seconds`), so that Kafka operators know them. `java` names the mirrored metric.

Invariant: docs/metrics.md is generated from here, and rules and dashboards use no other metric of this system. Labels
have few values (topics, partitions, reasons, routes), never a payment or an account.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One row of the catalogue."""

    name: str  # as scraped, units last
    kind: Kind
    unit: str  # of the value; empty for a state of 0 or 1
    help: str  # one sentence; a full stop ends it
    labels: tuple[str, ...] = ()  # in the order `labels()` takes them
    java: str = ""  # the Java client's metric that it mirrors
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, in its unit


_rows: list[Metric] = []


def _row(metric: Metric) -> Metric:
    _rows.append(metric)
    return metric


def _counter(name: str, unit: str, text: str, *labels: str, java: str = "") -> Metric:
    return _row(Metric(name, Kind.COUNTER, unit, text, labels, java))


def _gauge(name: str, unit: str, text: str, *labels: str, java: str = "") -> Metric:
    return _row(Metric(name, Kind.GAUGE, unit, text, labels, java))


def _histogram(name: str, unit: str, text: str, buckets: tuple[float, ...], *labels: str, java: str = "") -> Metric:
    return _row(Metric(name, Kind.HISTOGRAM, unit, text, labels, java, buckets))


_REQUEST_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LATENCY_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_RESTORE_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_HTTP_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_RECORDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)

# The producers of a process, all transactional.ids together where no label names one
RECORD_SEND = _counter(
    "kafka_producer_record_send_total",
    "records",
    "Records acknowledged by the brokers.",
    "topic",
    java="record-send-total",
)
RECORD_SEND_RATE = _gauge(
    "kafka_producer_record_send_rate",
    "records/s",
    "Records acknowledged each second, over the client's sample window.",
    java="record-send-rate",
)
RECORD_RETRY = _counter(
    "kafka_producer_record_retry_total",
    "records",
    "Records sent again after a retriable error.",
    java="record-retry-total",
)
RECORD_RETRY_RATE = _gauge(
    "kafka_producer_record_retry_rate",
    "records/s",
    "Records sent again each second, over the client's sample window.",
    java="record-retry-rate",
)
RECORD_ERROR = _counter(
    "kafka_producer_record_error_total",
    "records",
    "Records that the brokers refused or never acknowledged, by error.",
    "error",
    java="record-error-total",
)
RECORD_ERROR_RATE = _gauge(
    "kafka_producer_record_error_rate",
    "records/s",
    "Records refused or never acknowledged each second, over the client's sample window.",
    java="record-error-rate",
)
DUPLICATE_SEQUENCE = _counter(
    "kafka_producer_duplicate_sequence_total",
    "batches",
    "Batches that the broker had already; the client counts them as written without an error.",
)
OUT_OF_ORDER_SEQUENCE = _counter(
    "kafka_producer_out_of_order_sequence_total",
    "batches",
    "Batches refused because their sequence number does not follow the last one's.",
)
FENCED = _counter(
    "kafka_producer_fenced_total",
    "requests",
    "Requests refused because of a newer epoch, or of a removal from the group, by request and error.",
    "api",
    "error",
)
REQUEST_LATENCY = _histogram(
    "kafka_producer_request_latency_seconds",
    "seconds",
    "Time from a request to its response, by request.",
    _REQUEST_S,
    "api",
    java="request-latency-avg, request-latency-max",
)
RECORD_QUEUE_TIME = _histogram(
    "kafka_producer_record_queue_time_seconds",
    "seconds",
    "Time from a batch's first record until the batch is sent for the first time.",
    _REQUEST_S,
    java="record-queue-time-avg, record-queue-time-max",
)
REQUESTS_IN_FLIGHT = _gauge(
    "kafka_producer_requests_in_flight",
    "requests",
    "Requests of all producers that wait for their response.",
    java="requests-in-flight",
)
PRODUCE_THROTTLE_TIME = _counter(
    "kafka_producer_produce_throttle_time_seconds_total",
    "seconds",
    "Time that brokers delayed produce requests because of quotas, as they reported it.",
    java="produce-throttle-time-avg, produce-throttle-time-max",
)
TXN_INIT = _histogram(
    "kafka_producer_txn_init_seconds",
    "seconds",
    "Time of InitProducerId, settling the predecessor's transaction included.",
    _REQUEST_S,
    java="txn-init-time-ns-total",
)
TXN_BEGIN = _histogram(
    "kafka_producer_txn_begin_seconds",
    "seconds",
    "Time of begin, which sends nothing.",
    _REQUEST_S,
    java="txn-begin-time-ns-total",
)
TXN_SEND_OFFSETS = _histogram(
    "kafka_producer_txn_send_offsets_seconds",
    "seconds",
    "Time to add the consumed offsets to the transaction (AddOffsetsToTxn, TxnOffsetCommit).",
    _REQUEST_S,
    java="txn-send-offsets-time-ns-total",
)
TXN_COMMIT = _histogram(
    "kafka_producer_txn_commit_seconds",
    "seconds",
    "Time of EndTxn when committing.",
    _REQUEST_S,
    java="txn-commit-time-ns-total",
)
TXN_ABORT = _histogram(
    "kafka_producer_txn_abort_seconds",
    "seconds",
    "Time of EndTxn when aborting.",
    _REQUEST_S,
    java="txn-abort-time-ns-total",
)
TRANSACTIONS = _counter(
    "kafka_producer_transactions_total",
    "transactions",
    "Transactions ended, by outcome (committed, aborted, unknown) and cause: an error, stopped, or none.",
    "outcome",
    "cause",
)
TRANSACTION_RECORDS = _histogram(
    "kafka_producer_transaction_records", "records", "Records in a committed transaction, changelog included.", _RECORDS
)
OPEN_TRANSACTION_AGE = _gauge(
    "kafka_producer_open_transaction_age_seconds",
    "seconds",
    "How long the producer's transaction has been open; 0 while none is.",
    "transactional_id",
)
INIT_WAIT = _gauge(
    "kafka_producer_init_wait_seconds",
    "seconds",
    "How long InitProducerId has been waiting for success; 0 while it is not. Coordinator, state: `unknown` at first.",
    "transactional_id",
    "coordinator",
    "state",
)
PRODUCER_EPOCH = _gauge(
    "kafka_producer_epoch",
    "epoch",
    "The producer's epoch. Each InitProducerId raises it, and with version 2 of the protocol each transaction.",
    "transactional_id",
)

# The consumer of a process
RECORDS_CONSUMED = _counter(
    "kafka_consumer_records_consumed_total",
    "records",
    "Records taken from input partitions and processed in committed transactions.",
    "topic",
    java="records-consumed-total",
)
RECORDS_LAG = _gauge(
    "kafka_consumer_records_lag",
    "offsets",
    "Offsets from the position to the last stable offset; transaction markers behind it are passed over, so that it is "
    "exactly 0 when caught up.",
    "topic",
    "partition",
    java="records-lag",
)
LSO_LAG = _gauge(
    "kafka_consumer_lso_lag",
    "offsets",
    "High watermark minus last stable offset, as of the last fetch: offsets held back by open transactions.",
    "topic",
    "partition",
)
ASSIGNED_PARTITIONS = _gauge(
    "kafka_consumer_assigned_partitions",
    "partitions",
    "Input partitions assigned to this instance.",
    java="assigned-partitions",
)
REBALANCES = _counter(
    "kafka_consumer_rebalance_total",
    "rebalances",
    "Times that input partitions were assigned to this instance, or revoked from it.",
    java="rebalance-total",
)
REBALANCE_LATENCY = _histogram(
    "kafka_consumer_rebalance_latency_seconds",
    "seconds",
    "Time from joining, or from the revocation, to the new assignment.",
    _RESTORE_S,
    java="rebalance-latency-avg, rebalance-latency-max",
)

# The exactly-once runtime
RESTORE_SECONDS = _histogram(
    "once_restore_seconds",
    "seconds",
    "Time to restore a partition: offset, state, audit of its last transaction.",
    _RESTORE_S,
    java="restore-latency-avg",
)
TORN_TRANSACTIONS = _counter(
    "once_torn_transactions_total",
    "transactions",
    "Transactions of a previous owner that the brokers committed in part and this owner completed; should never rise.",
)
RESTORED_RECORDS = _counter(
    "once_restored_records_total", "records", "Changelog records read to restore state.", java="restore-total"
)
RESTORE_REMAINING = _gauge(
    "once_restore_remaining_offsets",
    "offsets",
    "Changelog offsets left to read until the partition's state is restored.",
    "partition",
    java="restore-remaining-records-total",
)
STATE_ENTRIES = _gauge("once_state_entries", "entries", "Entries of a partition's state.", "partition")
STATE_BYTES = _gauge(
    "once_state_bytes",
    "bytes",
    "Size of a partition's state as its changelog holds it: entries times their mean size so far.",
    "partition",
)
END_TO_END_LATENCY = _histogram(
    "once_end_to_end_latency_seconds",
    "seconds",
    "Time from the raw record to the commit of its outputs, by the topic written; of the oldest record of each "
    "transaction that carries an origin time, as one in 8 does.",
    _LATENCY_S,
    "hop",
)
DEAD_LETTERS = _counter(
    "once_dead_letters_total",
    "records",
    "Records written to the dead-letter topic in committed transactions, by reason.",
    "reason",
)
DEDUPLICATED = _counter("once_deduplicated_total", "records", "Repeats of accepted payments in committed transactions.")
SOURCE_REPEATS = _counter(
    "once_source_repeats_total",
    "records",
    "Records that a receiver ignored because it had processed their source already, by input topic; should never rise.",
    "topic",
)

# Credentials of a process
CERTIFICATE_EXPIRES = _gauge(
    "once_certificate_expires_timestamp_seconds",
    "seconds",
    "When a certificate of the process ends, since 1970 UTC: its identity, or the last of the authorities that it "
    "trusts. As read at the start of the process, which uses these until it ends.",
    "certificate",
)

# Gateway, view and the monitor's interface; requests in flight and refused, of the gateway
HTTP_REQUESTS = _counter(
    "once_http_requests_total",
    "requests",
    "Requests answered, by route template and status code.",
    "method",
    "route",
    "status",
)
HTTP_REQUEST_SECONDS = _histogram(
    "once_http_request_seconds", "seconds", "Time from request to answer.", _HTTP_S, "method", "route"
)
HTTP_REQUESTS_IN_FLIGHT = _gauge(
    "once_http_requests_in_flight", "requests", "Payments that wait for the brokers' acknowledgement."
)
HTTP_PAYMENTS_REFUSED = _counter(
    "once_http_payments_refused_total",
    "payments",
    "Payments that the gateway refused or could not write, by reason.",
    "reason",
)
HTTP_ACCESS_REFUSED = _counter(
    "once_http_access_refused_total",
    "requests",
    "Requests that the gateway did not admit, by reason: no valid key, above the rate, not_authorised or host_unknown.",
    "reason",
)
HTTP_MALFORMED = _counter(
    "once_http_malformed_total",
    "requests",
    "Requests without a valid HTTP head, answered with 400; they are not in once_http_requests_total.",
)
API_KEYS_READ = _counter(
    "once_api_keys_read_total",
    "times",
    "Reads of a changed file of API keys, by outcome: taken, or refused; three refused in a row end the service.",
    "outcome",
)
API_KEY_EXPIRY = _gauge(
    "once_api_key_expires_timestamp_seconds",
    "seconds",
    "When the next API key expires, seconds since 1970 UTC; no series while none will.",
)

# The outbox
EFFECTS = _counter(
    "once_effects_total",
    "effects",
    "Effects with a result in committed transactions, by kind and state: sent, failed or in_doubt.",
    "kind",
    "state",
)
EFFECT_CALLS = _counter(
    "once_effect_calls_total",
    "calls",
    "Calls to destinations, by channel and outcome: delivered, retriable, refused or unknown.",
    "channel",
    "outcome",
)
EFFECT_CALL_SECONDS = _histogram(
    "once_effect_call_seconds", "seconds", "Time of a call to a destination.", _HTTP_S, "channel"
)
EFFECTS_REPEATED = _counter(
    "once_effects_repeated_total",
    "requests",
    "Requests whose effect was known already: a replay, or the work of a previous owner.",
)
EFFECTS_RESENT = _counter(
    "once_effects_resent_total",
    "calls",
    "Calls made although an earlier one may have been taken by a destination without keys.",
)
EFFECTS_WAITING = _gauge("once_effects_waiting", "effects", "Effects that wait for a retry.", "partition")
EFFECTS_WAITING_CHANNEL = _gauge(
    "once_effects_waiting_by_channel", "effects", "The same by channel.", "partition", "channel"
)
ENDPOINTS_DISABLED = _gauge(
    "once_endpoints_disabled", "endpoints", "Endpoints that are disabled: their effects go to effects.dead-letter."
)
CIRCUITS_OPEN = _gauge(
    "once_effect_circuits_open", "destinations", "Destinations whose circuit is open after failures in a row."
)
REDIS_TRUSTED = _gauge(
    "once_redis_trusted", "", "1 while the claims in Redis can be relied on; at 0 the outbox sends nothing."
)
REDIS_DISTRUSTED = _counter(
    "once_redis_distrusted_total", "times", "Times that Redis was found flushed, restarted, failed over or silent."
)
REDIS_REBUILT = _counter(
    "once_redis_rebuilt_total", "times", "Times that a partition's claims were rebuilt from effects.results."
)

# The balances view
VIEW_TRANSACTION = _histogram(
    "once_view_transaction_seconds",
    "seconds",
    "Time of a transaction of the view's database, decoding and folding included.",
    _REQUEST_S,
)
VIEW_TRANSACTION_RECORDS = _histogram(
    "once_view_transaction_records", "records", "Records in a committed transaction of the view's database.", _RECORDS
)
VIEW_BEHIND = _gauge(
    "once_view_behind_seconds",
    "seconds",
    "How long the first record missing from the view can have been in the ledger. Where none is known to be missing, "
    "the time since the brokers were asked.",
    "partition",
)
VIEW_BEGUN_ANEW = _counter(
    "once_view_begun_anew_total",
    "times",
    "Times that partitions were read again from the database's positions, by cause: overtaken (another instance wrote "
    "them), gap (a page was lost in a rebalance) or emptied (a rebuild).",
    "cause",
)
VIEW_DATABASE_RETRIES = _counter(
    "once_view_database_retries_total", "tries", "Tries for which the view's database was unavailable."
)

# Cluster state that no service can observe, exported by the monitor
TRANSACTIONS_ONGOING = _gauge(
    "kafka_cluster_transactions_ongoing",
    "transactions",
    "Open transactions, as reported by the transaction coordinators.",
)
TRANSACTION_OPEN = _gauge(
    "kafka_cluster_transaction_open_seconds",
    "seconds",
    "Age of a transaction that has been open for more than a second, by transactional.id; the 20 oldest.",
    "transactional_id",
)
TRANSACTIONS_HANGING = _gauge(
    "kafka_cluster_transactions_hanging",
    "transactions",
    "Transactions that a partition holds open and no coordinator knows (KIP-664); they never end by themselves.",
    "topic",
    "partition",
)
PARTITION_LSO_LAG = _gauge(
    "kafka_cluster_partition_lso_lag", "offsets", "High watermark minus last stable offset.", "topic", "partition"
)
PARTITION_LSO_STUCK = _gauge(
    "kafka_cluster_partition_lso_stuck_seconds",
    "seconds",
    "How long the last stable offset has not moved although records are behind it; 0 otherwise.",
    "topic",
    "partition",
)
GROUP_OFFSETS_BEHIND = _gauge(
    "kafka_cluster_group_offsets_behind",
    "offsets",
    "Offsets from a group's committed offset to the last stable offset, transaction markers counted.",
    "group",
    "topic",
    "partition",
)
MONITOR_ROUNDS = _counter(
    "once_monitor_rounds_total",
    "rounds",
    "Rounds of requests to the cluster, by outcome: answered or failed.",
    "outcome",
)
MONITOR_LAST_ROUND = _gauge(
    "once_monitor_last_round_timestamp_seconds", "seconds", "When a round was last answered in full, since 1970 UTC."
)

# The last reconciliation
RECONCILE_LAST_RUN = _gauge(
    "once_reconcile_last_run_timestamp_seconds", "seconds", "When the last run ended, since 1970 UTC."
)
RECONCILE_CUT = _gauge("once_reconcile_cut_timestamp_seconds", "seconds", "When its cut was taken, since 1970 UTC.")
RECONCILE_SEQUENCE = _gauge("once_reconcile_cut_sequence", "cuts", "Number of its cut: 1 for the first.")
RECONCILE_DURATION = _gauge("once_reconcile_duration_seconds", "seconds", "How long it took, landing included.")
RECONCILE_STAGE_DURATION = _gauge(
    "once_reconcile_stage_duration_seconds",
    "seconds",
    "How long each stage of it took; the jobs of a topic's landing are added up.",
    "stage",
)
RECONCILE_CLEAN = _gauge("once_reconcile_clean", "", "1 when no break is open without an explanation, else 0.")
RECONCILE_BREAKS = _gauge("once_reconcile_breaks", "breaks", "Open breaks without an explanation, by kind.", "kind")
RECONCILE_EXPLAINED = _gauge("once_reconcile_breaks_explained", "breaks", "Open breaks that a person explained.")
RECONCILE_OLDEST = _gauge(
    "once_reconcile_oldest_break_timestamp_seconds",
    "seconds",
    "When the cut that showed the oldest open break without an explanation was taken, since 1970 UTC; 0 without any.",
)
RECONCILE_AT_RISK = _gauge(
    "once_reconcile_at_risk_minor_units",
    "minor units",
    "Sum of the amounts of open breaks without an explanation, by currency.",
    "currency",
)
RECONCILE_IN_FLIGHT = _gauge(
    "once_reconcile_in_flight", "records", "Records in flight at its cut, by what they wait for.", "waits_for"
)
RECONCILE_RECORDS = _gauge(
    "once_reconcile_records", "records", "Counts of its report, by the figure's name there.", "figure"
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(_rows)
BY_NAME: Final = {metric.name: metric for metric in CATALOGUE}
