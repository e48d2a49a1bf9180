"""The outbox's settings: Redis, claims, retries, and the channels to destinations."""

from dataclasses import dataclass

from shared.settings.services import RuntimeSettings, setting


@dataclass(frozen=True, kw_only=True)
class OutboxSettings(RuntimeSettings):
    redis_url: str = setting("ONCE_REDIS_URL", "Redis, redis://host:port/database; rediss:// for TLS.")
    redis_username: str = setting("ONCE_REDIS_USERNAME", "User to sign in to Redis as. Empty means none.", "")
    redis_password_file: str = setting(
        "ONCE_REDIS_PASSWORD_FILE",
        "File with the user's password, readable by its owner only. It is read at each connection.",
        "",
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
    lease_s: float = setting(
        "ONCE_OUTBOX_LEASE_S",
        "Seconds that a claim belongs to its owner; at least twice ONCE_OUTBOX_CALL_TIMEOUT_S.",
        30.0,
    )
    call_timeout_s: float = setting("ONCE_OUTBOX_CALL_TIMEOUT_S", "Seconds that a call to a destination may take.", 5.0)
    stop_deadline_s: float = setting("ONCE_STOP_DEADLINE_S", "As for the other services.", 8.0)
    batch_max: int = setting("ONCE_OUTBOX_BATCH_MAX", "Effects per partition that are claimed at once.", 200)
    calls_max: int = setting("ONCE_OUTBOX_CALLS_MAX", "Concurrent calls to destinations, of all partitions.", 64)
    waiting_max: int = setting(
        "ONCE_OUTBOX_WAITING_MAX", "Effects per partition that wait for a retry; above it, no input is taken.", 10_000
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
        "webhooks.",
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
