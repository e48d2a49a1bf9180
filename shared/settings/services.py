"""What the services take, and what `once reconcile` takes. The outbox' settings are in a module of their own."""

from dataclasses import dataclass
from typing import Literal

from shared.settings.declaring import Settings, setting

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Settings):
    """What every service takes."""

    bootstrap_servers: str = setting("ONCE_BOOTSTRAP_SERVERS", "Kafka brokers, host:port, comma separated.")
    tls_ca_file: str = setting(
        "ONCE_TLS_CA_FILE",
        "Certificates that brokers are trusted by, PEM. With ONCE_TLS_IDENTITY_FILE, or neither: then no TLS.",
        "",
    )
    tls_identity_file: str = setting(
        "ONCE_TLS_IDENTITY_FILE",
        "Private key and certificate chain by which brokers know this service, PEM, one file.",
        "",
    )
    instance: str = setting("ONCE_INSTANCE", "Name of this instance, unique per service; stable over restarts.", "0")
    metrics_port: int = setting("ONCE_METRICS_PORT", "Port of /metrics, /healthz and /readyz; 0 picks one.", 0)
    metrics_host: str = setting("ONCE_METRICS_HOST", "Address that it binds to.", "127.0.0.1")
    log_level: LogLevel = setting("ONCE_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR.", "INFO")  # noqa: RUF009 # a field
    clock_skew_s_max: float = setting(
        "ONCE_CLOCK_SKEW_S_MAX", "Seconds that this machine's clock may differ from the brokers' at the start.", 10.0
    )


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    """What the gateway takes."""

    port: int = setting("ONCE_GATEWAY_PORT", "Port of the HTTP interface; 0 picks one.", 8080)
    host: str = setting("ONCE_GATEWAY_HOST", "Address that it binds to.", "127.0.0.1")
    accept_timeout_s: float = setting(
        "ONCE_GATEWAY_ACCEPT_TIMEOUT_S",
        "Seconds until a payment that Kafka does not take is answered with 503.",
        5.0,
    )
    requests_in_flight_max: int = setting(
        "ONCE_GATEWAY_REQUESTS_IN_FLIGHT_MAX", "Requests at once; one more is answered with 503.", 1000
    )
    api_keys_file: str = setting(
        "ONCE_GATEWAY_API_KEYS_FILE",
        "File of the clients' API keys, a line `client:sha256-of-the-key` for each (`once keys new` makes one); read "
        "again when it changes. Empty asks nobody for a key, which is refused unless ONCE_GATEWAY_HOST is a loopback "
        "address.",
        "",
    )
    rate_per_s: float = setting(
        "ONCE_GATEWAY_RATE_PER_S",
        "Requests a second that each client may send in the long run; one more is answered with 429. Without keys, all "
        "are one client. 0 is no limit.",
        0.0,
    )
    burst: int = setting(
        "ONCE_GATEWAY_BURST", "Requests that a client may send at once after a rest. 0 is those of one second.", 0
    )
    body_bytes_max: int = setting(
        "ONCE_GATEWAY_BODY_BYTES_MAX",
        "Bytes of a body, 1,024 to 1,000,000; a larger one is answered with 413. A payment has a few hundred; the rest "
        "is room for one that is refused with an exact reason.",
        65_536,
    )
    idle_timeout_s: float = setting(
        "ONCE_GATEWAY_IDLE_TIMEOUT_S",
        "Seconds from a connection's start, or its last answer, to the end of the next request's head; then it is "
        "closed. A proxy before it should close its idle connections earlier.",
        75.0,
    )


@dataclass(frozen=True, kw_only=True)
class MemberSettings(ServiceSettings):
    """What a member of a consumer group takes."""

    session_timeout_ms: int = setting(
        "ONCE_SESSION_TIMEOUT_MS",
        "Without a heartbeat for this long, the group gives the partitions to others.",
        6_000,
    )
    crash_point: str = setting(
        "ONCE_CRASH_POINT",
        "For tests: POINT=kill:N or POINT=stop:N sends this process SIGKILL or SIGSTOP when the point is reached for "
        "the N-th time. Empty is none.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(MemberSettings):
    """What the exactly-once runtime takes. Values that would break its promise are refused at start-up."""

    transactional_id: str = setting(
        "ONCE_TRANSACTIONAL_ID",
        "Pattern of the transactional.id; must name service, topic and partition: one per input partition.",
        "{service}-{topic}-{partition}",
    )
    transaction_timeout_ms: int = setting(
        "ONCE_TRANSACTION_TIMEOUT_MS", "After it the broker aborts an abandoned transaction.", 10_000
    )
    transaction_open_ms: int = setting(
        "ONCE_TRANSACTION_OPEN_MS", "A transaction takes input no longer than this under load.", 100
    )
    transaction_rest_max_ms: int = setting(
        "ONCE_TRANSACTION_REST_MAX_MS",
        "A partition without backlog rests after a transaction, four times as long as that took, but no longer than "
        "this: what a transaction costs the brokers does not depend on its size. 0 is never.",
        250,
    )
    stop_deadline_s: float = setting(
        "ONCE_STOP_DEADLINE_S",
        "Seconds that a rebalance or SIGTERM leaves to end the open transaction; 8 for the outbox, for its calls.",
        5.0,
    )


@dataclass(frozen=True, kw_only=True)
class IngestSettings(RuntimeSettings):
    """What ingest takes."""

    window: int = setting("ONCE_INGEST_WINDOW", "Accepted identities remembered per partition.", 100_000)


@dataclass(frozen=True, kw_only=True)
class LedgerSettings(RuntimeSettings):
    """What the ledger takes."""

    reversal_window: int = setting(
        "ONCE_LEDGER_REVERSAL_WINDOW",
        "Payments per partition that can still be reversed, the last ones.",
        20_000,
    )


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(ServiceSettings):
    """What the monitor takes."""

    interval_s: float = setting("ONCE_MONITOR_INTERVAL_S", "Seconds from one round of questions to the next.", 2.0)
    answer_timeout_s: float = setting(
        "ONCE_MONITOR_ANSWER_TIMEOUT_S",
        "Seconds that a broker may take to answer; a silent one delays a round by as long.",
        2.0,
    )


@dataclass(frozen=True, kw_only=True)
class ViewSettings(MemberSettings):
    """What the balances view takes."""

    database: str = setting(
        "ONCE_VIEW_DATABASE",
        "Where the view is kept: sqlite:///FILE, or postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE for several "
        "instances.",
        "sqlite:///balances.sqlite",
    )
    port: int = setting("ONCE_VIEW_PORT", "Port of the page and the JSON interface; 0 picks one.", 8090)
    host: str = setting("ONCE_VIEW_HOST", "Address that it binds to.", "127.0.0.1")
    watched: str = setting(
        "ONCE_VIEW_WATCHED",
        "What the page shows at work: service=host:port of each instance's metrics, comma separated.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(Settings):
    """What the creation of topics takes."""

    replication_factor: int = setting(
        "ONCE_REPLICATION_FACTOR",
        "Replicas of each partition of the topics that are created. All but one must be in sync for a record to count "
        "as written; with 1, the loss of a broker is the loss of its data.",
        3,
    )


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings(Settings):
    """What `once reconcile` takes."""

    spark_master: str = setting("ONCE_SPARK_MASTER", "Spark master that does the work.", "local[*]")
    spark_driver_host: str = setting(
        "ONCE_SPARK_DRIVER_HOST", "Address of this machine on which the workers reach the driver.", "127.0.0.1"
    )
    spark_memory: str = setting(
        "ONCE_SPARK_MEMORY", "The driver's heap; with a local master it does all the work.", "4g"
    )
    lake: str = setting(
        "ONCE_LAKE", "Folder of the landed tables and runs. Empty is `lake` in the local stack's directory.", ""
    )
    textfile: str = setting(
        "ONCE_RECONCILE_TEXTFILE", "File for the Prometheus node exporter's textfile collector. Empty is none.", ""
    )
