"""Settings of the services and of `once reconcile`."""

from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from shared.events.partitions import PARTITIONS_MAX

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
WebhookFormat = Literal["standard", "once"]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
TimeZone = Annotated[str, Meta(pattern=r"^(UTC|[A-Z][A-Za-z_]+(/[A-Z][A-Za-z0-9_+-]+)+)$")]


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
class InstallationSettings(Settings):
    """Settings that all processes of an installation share."""

    partitions: PartitionCount = setting(  # noqa: RUF009 # a field
        "ONCE_PARTITIONS",
        "Partitions of every topic, 1 to 256. Topics are created with so many; a service refuses topics that have "
        "another number. It cannot be changed later: it decides where each account lives.",
        6,
    )


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(InstallationSettings):
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
        "File of the clients' API keys, which `once clients` writes; read again when it changes. Required: no request "
        "is admitted without a key.",
        "",
    )
    rate_per_s: float = setting(
        "ONCE_GATEWAY_RATE_PER_S",
        "Requests per second that each client may send on average; one more is answered with 429. 0 means no limit.",
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
    batch_bytes_max: int = setting(
        "ONCE_GATEWAY_BATCH_BYTES_MAX",
        "Maximum bytes of a batch's body, 1,024 to 16,777,216; a larger one is answered with 413.",
        1_048_576,
    )
    hosts: str = setting(
        "ONCE_GATEWAY_HOSTS",
        "Names by which clients reach the gateway, without port, comma separated: a request with another name in its "
        "Host header is answered with 421. Addresses, localhost and ONCE_GATEWAY_HOST need no entry.",
        "",
    )
    view_url: str = setting(
        "ONCE_GATEWAY_VIEW_URL",
        "The view's address, of which the gateway asks the outcome of payments.",
        "http://127.0.0.1:8090",
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

    crash_point: str = setting(
        "ONCE_CRASH_POINT",
        "For tests: POINT=kill:N or POINT=stop:N sends this process SIGKILL or SIGSTOP when the point is reached for "
        "the N-th time. Empty means none.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(MemberSettings):
    """Settings of the exactly-once runtime. Values that would break its guarantee are refused at start-up."""

    transaction_timeout_ms: int = setting(
        "ONCE_TRANSACTION_TIMEOUT_MS", "Milliseconds until the broker aborts an abandoned transaction.", 10_000
    )
    transaction_open_ms: int = setting(
        "ONCE_TRANSACTION_OPEN_MS", "Milliseconds that a transaction takes input, at most, under load.", 100
    )
    stop_deadline_s: float = setting(
        "ONCE_STOP_DEADLINE_S",
        "Seconds to end the open transaction in a rebalance or after SIGTERM; 8 for the outbox, for its calls.",
        5.0,
    )


@dataclass(frozen=True, kw_only=True)
class IdentitySettings(Settings):
    window: int = setting("ONCE_INGEST_WINDOW", "Accepted identities remembered per partition.", 100_000)


@dataclass(frozen=True, kw_only=True)
class IngestSettings(RuntimeSettings, IdentitySettings):
    """Settings of ingest."""


@dataclass(frozen=True, kw_only=True)
class ReversalSettings(Settings):
    reversal_window: int = setting(
        "ONCE_LEDGER_REVERSAL_WINDOW", "Last payments per partition that can still be reversed.", 20_000
    )


@dataclass(frozen=True, kw_only=True)
class LedgerSettings(RuntimeSettings, ReversalSettings):
    """Settings of the ledger."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(ServiceSettings):
    interval_s: float = setting("ONCE_MONITOR_INTERVAL_S", "Seconds between the starts of two rounds of requests.", 2.0)
    answer_timeout_s: float = setting(
        "ONCE_MONITOR_ANSWER_TIMEOUT_S",
        "Seconds that a broker may take to answer; a silent one delays a round by as long.",
        2.0,
    )
    hosts: str = setting(
        "ONCE_MONITOR_HOSTS",
        "Names by which the view reaches the monitor, comma separated, without ports. A request below /v1 that names "
        "another Host is answered with 421. An address needs none.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class ViewSettings(MemberSettings):
    session_timeout_ms: int = setting(
        "ONCE_SESSION_TIMEOUT_MS",
        "The view's session timeout: without a heartbeat for this long, its group reassigns the partitions. The other "
        "services have that of the brokers, group.consumer.session.timeout.ms.",
        6_000,
    )
    database: str = setting(
        "ONCE_VIEW_DATABASE",
        "Database of the view: sqlite:///FILE, or postgresql+psycopg://USER@HOST:PORT/DATABASE for several instances. "
        "Beyond loopback, PostgreSQL needs ONCE_VIEW_DATABASE_CA_FILE, and the URL must have no password.",
        "sqlite:///balances.sqlite",
    )
    database_ca_file: str = setting(
        "ONCE_VIEW_DATABASE_CA_FILE",
        "Certificates to verify PostgreSQL with, PEM (libpq's sslrootcert). With it every connection uses TLS, and the "
        "host name is checked (sslmode=verify-full).",
        "",
    )
    database_password_file: str = setting(
        "ONCE_VIEW_DATABASE_PASSWORD_FILE",
        "Password file for PostgreSQL, lines of host:port:database:user:password (libpq's passfile), readable by its "
        "owner only. It is read at each connection.",
        "",
    )
    port: int = setting("ONCE_VIEW_PORT", "Port of the page and the JSON interface; 0 picks one.", 8090)
    host: str = setting("ONCE_VIEW_HOST", "Address that the view's port binds to.", "127.0.0.1")
    hosts: str = setting(
        "ONCE_VIEW_HOSTS",
        "Names by which clients reach the view, comma separated, without ports. A request that names another Host is "
        "answered with 421. An address needs none.",
        "",
    )
    api_keys_file: str = setting(
        "ONCE_VIEW_API_KEYS_FILE",
        "The gateway's file of keys, or a copy of it. A key needs the scope read, and house as well for what is not of "
        "its client. It is read again when it changes. Empty requires no key, which is refused unless ONCE_VIEW_HOST "
        "is a loopback address.",
        "",
    )
    watched: str = setting(
        "ONCE_VIEW_WATCHED",
        "Services that the page shows: service=host:port of each instance's metrics, comma separated. The one of the "
        "service monitor answers for the brokers, the last reconciliation and the ways of payments.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(InstallationSettings):
    replication_factor: int = setting(
        "ONCE_REPLICATION_FACTOR",
        "Replicas of each partition of the topics that are created. All but one must be in sync for a record to count "
        "as written; with 1, losing a broker loses its data.",
        3,
    )


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings(IdentitySettings, ReversalSettings):
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
    late_after_cuts: int = setting(
        "ONCE_RECONCILE_LATE_AFTER_CUTS", "Cuts after which a record that is still in flight is a break.", 3
    )
    records_max: int = setting(
        "ONCE_RECONCILE_RECORDS_MAX",
        "Offsets of one topic that a job of the landing reads at most. A landing that was stopped keeps the jobs that "
        "have finished.",
        20_000_000,
    )
    time_zone: TimeZone = setting(  # noqa: RUF009 # a field
        "ONCE_RECONCILE_TIME_ZONE",
        "Time zone of business days in the totals: an IANA name such as Europe/Prague. A cut pins it.",
        "UTC",
    )


@dataclass(frozen=True, kw_only=True)
class OutboxSettings(RuntimeSettings):
    redis_url: str = setting(
        "ONCE_REDIS_URL",
        "Redis, redis://host:port/database; rediss:// for TLS. With Redis Sentinel, the sentinels and the name of the "
        "master, redis+sentinel://host:port,host:port/master_name/database; rediss+sentinel:// for TLS.",
    )
    redis_username: str = setting("ONCE_REDIS_USERNAME", "User to sign in to Redis as. Empty means none.", "")
    redis_password_file: str = setting(
        "ONCE_REDIS_PASSWORD_FILE",
        "File with the user's password, readable by its owner only. It is read at each connection.",
        "",
    )
    redis_sentinel_username: str = setting(
        "ONCE_REDIS_SENTINEL_USERNAME", "User to sign in to the sentinels as. Empty means none.", ""
    )
    redis_sentinel_password_file: str = setting(
        "ONCE_REDIS_SENTINEL_PASSWORD_FILE", "File with that user's password; as ONCE_REDIS_PASSWORD_FILE.", ""
    )
    redis_timeout_s: float = setting(
        "ONCE_REDIS_TIMEOUT_S", "Seconds until a command counts as unanswered; then sending stops.", 2.0
    )
    retention_h: float = setting(
        "ONCE_OUTBOX_RETENTION_H",
        "Hours that Redis remembers an effect. 0 means the longest possible replay: effects.requests' retention.ms and "
        "segment.ms, plus an hour. A shorter time is refused.",
        0.0,
    )
    rate_per_s: float = setting(
        "ONCE_OUTBOX_RATE",
        "Effects per second, on average, that Redis' memory is planned for. The outbox does not start if those that it "
        "must remember do not fit; a higher rate is served as long as there is memory.",
        5.0,
    )
    lease_s: float = setting(
        "ONCE_OUTBOX_LEASE_S",
        "Seconds that a claim belongs to its owner; at least twice ONCE_OUTBOX_CALL_TIMEOUT_S.",
        30.0,
    )
    call_timeout_s: float = setting("ONCE_OUTBOX_CALL_TIMEOUT_S", "Seconds that a call to a destination may take.", 5.0)
    stop_deadline_s: float = setting("ONCE_STOP_DEADLINE_S", "As for the other services.", 8.0)
    batch_max: int = setting("ONCE_OUTBOX_BATCH_MAX", "Effects per partition that are claimed at once.", 200)
    calls_max: int = setting("ONCE_OUTBOX_CALLS_MAX", "Concurrent calls to destinations, of all partitions.", 64)
    lane_calls_max: int = setting(
        "ONCE_OUTBOX_LANE_CALLS_MAX",
        "Concurrent calls to one endpoint. It has at most as many as ONCE_OUTBOX_CALLS_MAX leaves free, so that one "
        "slow endpoint never has them all.",
        16,
    )
    waiting_max: int = setting(
        "ONCE_OUTBOX_WAITING_MAX",
        "Effects per partition that wait for a try; above it, no input is taken. One takes about 1.2 kB of memory.",
        25_000,
    )
    disable_after_h: float = setting(
        "ONCE_OUTBOX_DISABLE_AFTER_H",
        "Hours after which an endpoint that failed without one success is disabled; its effects go to "
        "effects.dead-letter. 0 disables none.",
        72.0,
    )
    retry_first_s: float = setting(
        "ONCE_OUTBOX_RETRY_FIRST_S", "Seconds until the first retry, doubled each time.", 1.0
    )
    retry_max_s: float = setting("ONCE_OUTBOX_RETRY_MAX_S", "Maximum seconds between two tries.", 300.0)
    retry_deadline_s: float = setting(
        "ONCE_OUTBOX_RETRY_DEADLINE_S",
        "Seconds after the first try until an effect goes to effects.dead-letter.",
        86_400.0,
    )
    circuit_failures: int = setting(
        "ONCE_OUTBOX_CIRCUIT_FAILURES", "Failures in a row after which a destination's circuit opens.", 5
    )
    circuit_open_s: float = setting(
        "ONCE_OUTBOX_CIRCUIT_OPEN_S", "Seconds that a circuit is open before one call tries the destination.", 10.0
    )
    in_doubt: str = setting(
        "ONCE_OUTBOX_IN_DOUBT",
        "How to handle an effect that may have been sent by a channel without keys (e-mail): `hold` for a person, or "
        "`resend` and count it; by kind, as in `receipt=resend,notice=hold`. The default for a kind is `hold`.",
        "",
    )
    webhook_key_file: str = setting(
        "ONCE_WEBHOOK_KEY_FILE",
        "File with the key, at least 32 bytes, that each destination's signing secret is derived from. Empty means no "
        "webhooks. It is read again when it changes.",
        "",
    )
    webhook_previous_key_file: str = setting(
        "ONCE_WEBHOOK_PREVIOUS_KEY_FILE",
        "File with the key before that one. While it exists, each webhook has two signatures; it is read again when it "
        "changes.",
        "",
    )
    webhook_format: WebhookFormat = setting(  # noqa: RUF009 # a field
        "ONCE_WEBHOOK_FORMAT",
        "Headers and body of webhooks: `standard` for Standard Webhooks, `once` for the former ones.",
        "standard",
    )
    webhook_allowed_networks: str = setting(
        "ONCE_WEBHOOK_ALLOWED_NETWORKS",
        "Networks such as 10.2.0.0/16, comma separated, whose addresses webhooks may be sent to although they are not "
        "public, and over plain http.",
        "",
    )
    webhook_proxy: str = setting(
        "ONCE_WEBHOOK_PROXY",
        "HTTP proxy for all webhooks, http://host:port. It resolves their names, and must refuse private addresses "
        "itself.",
        "",
    )
    smtp_host: str = setting("ONCE_SMTP_HOST", "Mail server. Empty disables e-mail.", "")
    smtp_port: int = setting("ONCE_SMTP_PORT", "The mail server's submission port.", 587)
    smtp_starttls: bool = setting("ONCE_SMTP_STARTTLS", "Whether STARTTLS is required; false for loopback only.", True)
    smtp_ca_file: str = setting("ONCE_SMTP_CA_FILE", "Certificates to trust, PEM. Empty means the system's.", "")
    smtp_user: str = setting("ONCE_SMTP_USER", "User to authenticate as. Empty means no authentication.", "")
    smtp_password_file: str = setting("ONCE_SMTP_PASSWORD_FILE", "File with the user's password.", "")
    smtp_sender: str = setting("ONCE_SMTP_SENDER", "Sender's address; its domain appears in each Message-ID.", "")
    file_directory: str = setting("ONCE_OUTBOX_FILE_DIRECTORY", "Directory of file: destinations. Empty is none.", "")
