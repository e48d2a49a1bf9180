"""Settings of the services and of `once reconcile`. The outbox's settings are in a module of their own."""

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def setting(variable: str, help_text: str, default: Any = MISSING) -> Any:
    """Declare a setting: a dataclass field with its environment variable. Without a default it is required.

    The help text is in the documentation, and in the message when a value cannot be used.
    """
    metadata = {"variable": variable, "help": help_text}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of all settings."""


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Settings):
    bootstrap_servers: str = setting("ONCE_BOOTSTRAP_SERVERS", "Kafka brokers, host:port, comma separated.")
    tls_ca_file: str = setting(
        "ONCE_TLS_CA_FILE",
        "Certificates to verify brokers with, PEM. Set it with ONCE_TLS_IDENTITY_FILE; without both, TLS is not used.",
        "",
    )
    tls_identity_file: str = setting(
        "ONCE_TLS_IDENTITY_FILE",
        "Private key and certificate chain of this service for the brokers, PEM, one file.",
        "",
    )
    instance: str = setting("ONCE_INSTANCE", "Name of this instance, unique per service; stable over restarts.", "0")
    metrics_port: int = setting("ONCE_METRICS_PORT", "Port of /metrics, /healthz and /readyz; 0 picks one.", 0)
    metrics_host: str = setting("ONCE_METRICS_HOST", "Address that the metrics port binds to.", "127.0.0.1")
    log_level: LogLevel = setting("ONCE_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR.", "INFO")  # noqa: RUF009 # a field
    clock_skew_s_max: float = setting(
        "ONCE_CLOCK_SKEW_S_MAX", "Seconds that this machine's clock may differ from the brokers' at start-up.", 10.0
    )


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    port: int = setting("ONCE_GATEWAY_PORT", "Port of the HTTP interface; 0 picks one.", 8080)
    host: str = setting("ONCE_GATEWAY_HOST", "Address that it binds to.", "127.0.0.1")
    accept_timeout_s: float = setting(
        "ONCE_GATEWAY_ACCEPT_TIMEOUT_S",
        "Seconds until a payment that Kafka does not acknowledge is answered with 503.",
        5.0,
    )
    requests_in_flight_max: int = setting(
        "ONCE_GATEWAY_REQUESTS_IN_FLIGHT_MAX", "Concurrent requests; one more is answered with 503.", 1000
    )
    api_keys_file: str = setting(
        "ONCE_GATEWAY_API_KEYS_FILE",
        "File of the clients' API keys, a line `client:sha256-of-the-key` for each (`once keys new` makes one); read "
        "again when it changes. Empty requires no key, which is refused unless ONCE_GATEWAY_HOST is a loopback "
        "address.",
        "",
    )
    rate_per_s: float = setting(
        "ONCE_GATEWAY_RATE_PER_S",
        "Requests per second that each client may send on average; one more is answered with 429. Without keys, all "
        "clients count as one. 0 means no limit.",
        0.0,
    )
    burst: int = setting(
        "ONCE_GATEWAY_BURST", "Requests that an idle client may send at once. 0 means those of one second.", 0
    )
    body_bytes_max: int = setting(
        "ONCE_GATEWAY_BODY_BYTES_MAX",
        "Maximum bytes of a body, 1,024 to 1,000,000; a larger one is answered with 413. A payment has a few hundred; "
        "the margin lets the gateway refuse a larger one with an exact reason.",
        65_536,
    )
    idle_timeout_s: float = setting(
        "ONCE_GATEWAY_IDLE_TIMEOUT_S",
        "Seconds from a connection's start, or its last response, to the end of the next request's head; then it is "
        "closed. A proxy in front of the gateway should close its idle connections earlier.",
        75.0,
    )


@dataclass(frozen=True, kw_only=True)
class MemberSettings(ServiceSettings):
    """Settings of a consumer group member."""

    session_timeout_ms: int = setting(
        "ONCE_SESSION_TIMEOUT_MS",
        "Session timeout: without a heartbeat for this long, the group reassigns the partitions.",
        6_000,
    )
    crash_point: str = setting(
        "ONCE_CRASH_POINT",
        "For tests: POINT=kill:N or POINT=stop:N sends this process SIGKILL or SIGSTOP when the point is reached for "
        "the N-th time. Empty means none.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(MemberSettings):
    """Settings of the exactly-once runtime. Values that would break its guarantee are refused at start-up."""

    transactional_id: str = setting(
        "ONCE_TRANSACTIONAL_ID",
        "Pattern of the transactional.id; must contain service, topic and partition: one id per input partition.",
        "{service}-{topic}-{partition}",
    )
    transaction_timeout_ms: int = setting(
        "ONCE_TRANSACTION_TIMEOUT_MS", "Milliseconds until the broker aborts an abandoned transaction.", 10_000
    )
    transaction_open_ms: int = setting(
        "ONCE_TRANSACTION_OPEN_MS", "Milliseconds that a transaction takes input, at most, under load.", 100
    )
    transaction_rest_max_ms: int = setting(
        "ONCE_TRANSACTION_REST_MAX_MS",
        "Maximum pause after a transaction of a partition without backlog, milliseconds. The pause is four times the "
        "transaction's duration: its cost for the brokers does not depend on its size. 0 means no pause.",
        250,
    )
    stop_deadline_s: float = setting(
        "ONCE_STOP_DEADLINE_S",
        "Seconds to end the open transaction in a rebalance or after SIGTERM; 8 for the outbox, for its calls.",
        5.0,
    )


@dataclass(frozen=True, kw_only=True)
class IngestSettings(RuntimeSettings):
    window: int = setting("ONCE_INGEST_WINDOW", "Accepted identities remembered per partition.", 100_000)


@dataclass(frozen=True, kw_only=True)
class LedgerSettings(RuntimeSettings):
    reversal_window: int = setting(
        "ONCE_LEDGER_REVERSAL_WINDOW", "Last payments per partition that can still be reversed.", 20_000
    )


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(ServiceSettings):
    interval_s: float = setting("ONCE_MONITOR_INTERVAL_S", "Seconds between the starts of two rounds of requests.", 2.0)
    answer_timeout_s: float = setting(
        "ONCE_MONITOR_ANSWER_TIMEOUT_S",
        "Seconds that a broker may take to answer; a silent one delays a round by as long.",
        2.0,
    )


@dataclass(frozen=True, kw_only=True)
class ViewSettings(MemberSettings):
    database: str = setting(
        "ONCE_VIEW_DATABASE",
        "Database of the view: sqlite:///FILE, or postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE for several "
        "instances.",
        "sqlite:///balances.sqlite",
    )
    port: int = setting("ONCE_VIEW_PORT", "Port of the page and the JSON interface; 0 picks one.", 8090)
    host: str = setting("ONCE_VIEW_HOST", "Address that the view's port binds to.", "127.0.0.1")
    watched: str = setting(
        "ONCE_VIEW_WATCHED",
        "Services that the page shows: service=host:port of each instance's metrics, comma separated.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(Settings):
    replication_factor: int = setting(
        "ONCE_REPLICATION_FACTOR",
        "Replicas of each partition of the topics that are created. All but one must be in sync for a record to count "
        "as written; with 1, losing a broker loses its data.",
        3,
    )


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings(Settings):
    spark_master: str = setting("ONCE_SPARK_MASTER", "Spark master that does the work.", "local[*]")
    spark_driver_host: str = setting(
        "ONCE_SPARK_DRIVER_HOST", "Address of this machine on which the workers reach the driver.", "127.0.0.1"
    )
    spark_memory: str = setting(
        "ONCE_SPARK_MEMORY", "The driver's heap; with a local master it does all the work.", "4g"
    )
    lake: str = setting(
        "ONCE_LAKE", "Folder of the landed tables and runs. Empty means `lake` in the local stack's directory.", ""
    )
    textfile: str = setting(
        "ONCE_RECONCILE_TEXTFILE", "File for the Prometheus node exporter's textfile collector. Empty means none.", ""
    )
