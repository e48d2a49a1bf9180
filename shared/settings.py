"""Settings from the environment: the only module that reads it.

Each setting is a dataclass field with its variable, default and meaning, so that the documentation is generated and
nothing else in the code base knows a variable's name. A wrong value is refused at start-up with what to change.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

EXIT_CONFIG = 78
"""Exit code for a refused setting (EX_CONFIG of sysexits.h): starting again would not help."""


class SettingsError(Exception):
    """Settings that cannot be used; the message names each variable and what to change."""


def _setting(variable: str, help_text: str, default: Any = MISSING, choices: tuple[str, ...] = ()) -> Any:
    metadata = {"variable": variable, "help": help_text, "choices": choices}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every class of settings is."""


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Settings):
    """What every service takes."""

    bootstrap_servers: str = _setting("ONCE_BOOTSTRAP_SERVERS", "Kafka brokers, host:port, comma separated.")
    tls_ca_file: str = _setting(
        "ONCE_TLS_CA_FILE",
        "Certificates that brokers are trusted by, PEM. With ONCE_TLS_IDENTITY_FILE, or neither: then no TLS.",
        "",
    )
    tls_identity_file: str = _setting(
        "ONCE_TLS_IDENTITY_FILE",
        "Private key and certificate chain by which brokers know this service, PEM, one file.",
        "",
    )
    instance: str = _setting("ONCE_INSTANCE", "Name of this instance, unique per service; stable over restarts.", "0")
    metrics_port: int = _setting("ONCE_METRICS_PORT", "Port of /metrics, /healthz and /readyz; 0 picks one.", 0)
    metrics_host: str = _setting("ONCE_METRICS_HOST", "Address that it binds to.", "127.0.0.1")
    log_level: str = _setting("ONCE_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR.", "INFO", LOG_LEVELS)
    clock_skew_s_max: float = _setting(
        "ONCE_CLOCK_SKEW_S_MAX", "Seconds that this machine's clock may differ from the brokers' at the start.", 10.0
    )


@dataclass(frozen=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    """What the gateway takes."""

    port: int = _setting("ONCE_GATEWAY_PORT", "Port of the HTTP interface; 0 picks one.", 8080)
    host: str = _setting("ONCE_GATEWAY_HOST", "Address that it binds to.", "127.0.0.1")
    accept_timeout_s: float = _setting(
        "ONCE_GATEWAY_ACCEPT_TIMEOUT_S",
        "Seconds until a payment that Kafka does not take is answered with 503.",
        5.0,
    )
    requests_in_flight_max: int = _setting(
        "ONCE_GATEWAY_REQUESTS_IN_FLIGHT_MAX", "Requests at once; one more is answered with 503.", 1000
    )
    api_keys_file: str = _setting(
        "ONCE_GATEWAY_API_KEYS_FILE",
        "File of the clients' API keys, a line `client:sha256-of-the-key` for each (`once keys new` makes one); read "
        "again when it changes. Empty asks nobody for a key, which is refused unless ONCE_GATEWAY_HOST is a loopback "
        "address.",
        "",
    )
    rate_per_s: float = _setting(
        "ONCE_GATEWAY_RATE_PER_S",
        "Requests a second that each client may send in the long run; one more is answered with 429. Without keys, all "
        "are one client. 0 is no limit.",
        0.0,
    )
    burst: int = _setting(
        "ONCE_GATEWAY_BURST", "Requests that a client may send at once after a rest. 0 is those of one second.", 0
    )
    body_bytes_max: int = _setting(
        "ONCE_GATEWAY_BODY_BYTES_MAX",
        "Bytes of a body, 1,024 to 1,000,000; a larger one is answered with 413. A payment has a few hundred; the rest "
        "is room for one that is refused with an exact reason.",
        65_536,
    )
    idle_timeout_s: float = _setting(
        "ONCE_GATEWAY_IDLE_TIMEOUT_S",
        "Seconds from a connection's start, or its last answer, to the end of the next request's head; then it is "
        "closed. A proxy before it should close its idle connections earlier.",
        75.0,
    )


@dataclass(frozen=True, kw_only=True)
class MemberSettings(ServiceSettings):
    """What a member of a consumer group takes."""

    session_timeout_ms: int = _setting(
        "ONCE_SESSION_TIMEOUT_MS",
        "Without a heartbeat for this long, the group gives the partitions to others.",
        6_000,
    )
    crash_point: str = _setting(
        "ONCE_CRASH_POINT",
        "For tests: POINT=kill:N or POINT=stop:N sends this process SIGKILL or SIGSTOP when the point is reached for "
        "the N-th time. Empty is none.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeSettings(MemberSettings):
    """What the exactly-once runtime takes. Values that would break its promise are refused at start-up."""

    acks: str = _setting("ONCE_PRODUCER_ACKS", "Only `all` keeps an acknowledged record over a broker's loss.", "all")
    enable_idempotence: bool = _setting(
        "ONCE_PRODUCER_ENABLE_IDEMPOTENCE", "Only true: transactions are built on it.", True
    )
    retries: int = _setting(
        "ONCE_PRODUCER_RETRIES", "At least 1: a lost answer must be asked for again.", 2_147_483_647
    )
    max_in_flight: int = _setting(
        "ONCE_PRODUCER_MAX_IN_FLIGHT",
        "1 to 5: the broker remembers five batches per producer and partition.",
        1,
    )
    transactional_id: str = _setting(
        "ONCE_TRANSACTIONAL_ID",
        "Pattern of the transactional.id; must name service, topic and partition: one per input partition.",
        "{service}-{topic}-{partition}",
    )
    fencing: str = _setting(
        "ONCE_FENCING",
        "What fences a predecessor: `transactional_id`. `group_generation` (KIP-447) is refused: the client lacks it.",
        "transactional_id",
    )
    transaction_timeout_ms: int = _setting(
        "ONCE_TRANSACTION_TIMEOUT_MS", "After it the broker aborts an abandoned transaction.", 10_000
    )
    transaction_open_ms: int = _setting(
        "ONCE_TRANSACTION_OPEN_MS", "A transaction takes input no longer than this under load.", 100
    )
    transaction_rest_max_ms: int = _setting(
        "ONCE_TRANSACTION_REST_MAX_MS",
        "A partition without backlog rests after a transaction, four times as long as that took, but no longer than "
        "this: what a transaction costs the brokers does not depend on its size. 0 is never.",
        250,
    )
    stop_deadline_s: float = _setting(
        "ONCE_STOP_DEADLINE_S",
        "Seconds that a rebalance or SIGTERM leaves to end the open transaction; 8 for the outbox, for its calls.",
        5.0,
    )


@dataclass(frozen=True, kw_only=True)
class IngestSettings(RuntimeSettings):
    """What ingest takes."""

    window: int = _setting("ONCE_INGEST_WINDOW", "Accepted identities remembered per partition.", 100_000)


@dataclass(frozen=True, kw_only=True)
class LedgerSettings(RuntimeSettings):
    """What the ledger takes."""

    reversal_window: int = _setting(
        "ONCE_LEDGER_REVERSAL_WINDOW",
        "Payments per partition that can still be reversed, the last ones.",
        20_000,
    )


@dataclass(frozen=True, kw_only=True)
class OutboxSettings(RuntimeSettings):
    """What the outbox takes."""

    redis_url: str = _setting("ONCE_REDIS_URL", "Redis, redis://host:port/database; rediss:// for TLS.")
    redis_username: str = _setting("ONCE_REDIS_USERNAME", "User to sign in to Redis as. Empty is none.", "")
    redis_password_file: str = _setting(
        "ONCE_REDIS_PASSWORD_FILE",
        "File with the user's password, not for everybody to read. It is read at each connection.",
        "",
    )
    redis_timeout_s: float = _setting(
        "ONCE_REDIS_TIMEOUT_S", "Seconds until a command counts as unanswered; sending stops then.", 2.0
    )
    retention_h: float = _setting(
        "ONCE_OUTBOX_RETENTION_H",
        "Hours that Redis remembers an effect. 0 takes the longest possible replay: effects.requests' retention.ms and "
        "segment.ms, and an hour. Refused when shorter than that.",
        0.0,
    )
    lease_s: float = _setting(
        "ONCE_OUTBOX_LEASE_S",
        "Seconds that a claim belongs to its owner alone; at least twice ONCE_OUTBOX_CALL_TIMEOUT_S.",
        30.0,
    )
    call_timeout_s: float = _setting(
        "ONCE_OUTBOX_CALL_TIMEOUT_S", "Seconds that one call to the outside may take.", 5.0
    )
    stop_deadline_s: float = _setting("ONCE_STOP_DEADLINE_S", "As for the other services.", 8.0)
    batch_max: int = _setting("ONCE_OUTBOX_BATCH_MAX", "Effects per partition that are claimed at once.", 200)
    calls_max: int = _setting("ONCE_OUTBOX_CALLS_MAX", "Calls to the outside at once, of all partitions.", 64)
    waiting_max: int = _setting(
        "ONCE_OUTBOX_WAITING_MAX",
        "Effects per partition that wait for another try; with more, no input is taken.",
        10_000,
    )
    retry_first_s: float = _setting(
        "ONCE_OUTBOX_RETRY_FIRST_S", "Seconds before the second try, doubled for each.", 1.0
    )
    retry_max_s: float = _setting("ONCE_OUTBOX_RETRY_MAX_S", "The most seconds between two tries.", 300.0)
    retry_deadline_s: float = _setting(
        "ONCE_OUTBOX_RETRY_DEADLINE_S",
        "Seconds after the first try until an effect goes to effects.dead-letter.",
        86_400.0,
    )
    circuit_failures: int = _setting(
        "ONCE_OUTBOX_CIRCUIT_FAILURES", "Failures in a row after which a destination is left alone.", 5
    )
    circuit_open_s: float = _setting(
        "ONCE_OUTBOX_CIRCUIT_OPEN_S", "Seconds that it is left alone before one call tries it again.", 10.0
    )
    in_doubt: str = _setting(
        "ONCE_OUTBOX_IN_DOUBT",
        "What is done with an effect that may have been sent by a channel without keys (e-mail): `hold` for a person, "
        "or `resend` and count it; by kind, as in `receipt=resend,notice=hold`. A kind not named is held.",
        "",
    )
    webhook_key_file: str = _setting(
        "ONCE_WEBHOOK_KEY_FILE",
        "File with the key, at least 32 bytes, that each destination's signing secret is derived from. Empty is no "
        "webhooks.",
        "",
    )
    smtp_host: str = _setting("ONCE_SMTP_HOST", "Mail server. Empty is no e-mail.", "")
    smtp_port: int = _setting("ONCE_SMTP_PORT", "Its submission port.", 587)
    smtp_starttls: bool = _setting("ONCE_SMTP_STARTTLS", "Whether STARTTLS is required; false for loopback only.", True)
    smtp_ca_file: str = _setting("ONCE_SMTP_CA_FILE", "Certificates to trust, PEM. Empty is the system's.", "")
    smtp_user: str = _setting("ONCE_SMTP_USER", "User to authenticate as. Empty is no authentication.", "")
    smtp_password_file: str = _setting("ONCE_SMTP_PASSWORD_FILE", "File with the user's password.", "")
    smtp_sender: str = _setting("ONCE_SMTP_SENDER", "Sender's address; its domain is in each Message-ID.", "")
    file_directory: str = _setting("ONCE_OUTBOX_FILE_DIRECTORY", "Where file: destinations are. Empty is none.", "")


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(ServiceSettings):
    """What the monitor takes."""

    interval_s: float = _setting("ONCE_MONITOR_INTERVAL_S", "Seconds from one round of questions to the next.", 2.0)
    answer_timeout_s: float = _setting(
        "ONCE_MONITOR_ANSWER_TIMEOUT_S",
        "Seconds that a broker may take to answer; a silent one delays a round by as long.",
        2.0,
    )


@dataclass(frozen=True, kw_only=True)
class ViewSettings(MemberSettings):
    """What the balances view takes."""

    database: str = _setting(
        "ONCE_VIEW_DATABASE",
        "Where the view is kept: sqlite:///FILE, or postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE for several "
        "instances.",
        "sqlite:///balances.sqlite",
    )
    port: int = _setting("ONCE_VIEW_PORT", "Port of the page and the JSON interface; 0 picks one.", 8090)
    host: str = _setting("ONCE_VIEW_HOST", "Address that it binds to.", "127.0.0.1")
    watched: str = _setting(
        "ONCE_VIEW_WATCHED",
        "What the page shows at work: service=host:port of each instance's metrics, comma separated.",
        "",
    )


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings(Settings):
    """What `once reconcile` takes."""

    spark_master: str = _setting("ONCE_SPARK_MASTER", "Spark master that does the work.", "local[*]")
    spark_driver_host: str = _setting(
        "ONCE_SPARK_DRIVER_HOST", "Address of this machine on which the workers reach the driver.", "127.0.0.1"
    )
    spark_memory: str = _setting(
        "ONCE_SPARK_MEMORY", "The driver's heap; with a local master it does all the work.", "4g"
    )
    lake: str = _setting(
        "ONCE_LAKE", "Folder of the landed tables and runs. Empty is `lake` in the local stack's directory.", ""
    )
    textfile: str = _setting(
        "ONCE_RECONCILE_TEXTFILE", "File for the Prometheus node exporter's textfile collector. Empty is none.", ""
    )


S = TypeVar("S", bound=Settings)

ALL_SETTINGS: tuple[type[Settings], ...] = (
    ServiceSettings,
    GatewaySettings,
    MemberSettings,
    RuntimeSettings,
    IngestSettings,
    LedgerSettings,
    OutboxSettings,
    MonitorSettings,
    ViewSettings,
    ReconcileSettings,
)


def load(cls: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Read one class of settings.

    Args:
        cls: the settings class.
        environment: for tests; None is the process's own.

    Raises:
        SettingsError: naming every variable that is missing or wrong at once.
    """
    source = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for item in fields(cls):
        variable = item.metadata["variable"]
        text = source.get(variable)
        if text is None:
            if item.default is MISSING:
                wrong.append(f"{variable} is not set: {item.metadata['help']}")
            continue
        try:
            values[item.name] = _convert(item, text)
        except ValueError:
            wrong.append(f"{variable} is {text!r}, which is no {_type_name(item)}: {item.metadata['help']}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    return cls(**values)


def once_directory() -> str | None:
    """Where the local stack keeps its data, if ONCE_DIR says so."""
    return os.environ.get("ONCE_DIR")


def bootstrap_servers() -> str | None:
    """The brokers that commands use, if ONCE_BOOTSTRAP_SERVERS names them."""
    return os.environ.get("ONCE_BOOTSTRAP_SERVERS")


def tls_files() -> tuple[str, str]:
    """The two files of commands: ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE; empty where not set."""
    return os.environ.get("ONCE_TLS_CA_FILE", ""), os.environ.get("ONCE_TLS_IDENTITY_FILE", "")


def _type_name(item: "Field[Any]") -> str:
    return item.type if isinstance(item.type, str) else item.type.__name__


def _convert(item: "Field[Any]", text: str) -> Any:
    choices = item.metadata["choices"]
    if choices and text not in choices:
        raise ValueError(text)
    if item.type is bool:
        if text.lower() not in {"true", "false"}:
            raise ValueError(text)
        return text.lower() == "true"
    if item.type is int:
        return int(text)
    return float(text) if item.type is float else text
