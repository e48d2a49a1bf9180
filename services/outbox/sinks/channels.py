"""The sinks that the settings configure, checked before anything is sent. No connection is made here."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from services.outbox.outcomes import Sink
from services.outbox.sinks.credentials import SigningKeys, load_password
from services.outbox.sinks.egress import Egress
from services.outbox.sinks.email import EmailSink, recipient_of
from services.outbox.sinks.file import FileSink
from services.outbox.sinks.smtp import Server
from services.outbox.sinks.webhook import FORMATS, WebhookSink, derive_secrets
from shared.addresses import is_loopback, parse_networks
from shared.events.effects import Channel
from shared.settings import OutboxSettings

USER_AGENT = "once-outbox"
SMTP_CONNECTIONS_MAX = 8  # mail servers commonly allow one client ten at once


def open_sinks(settings: OutboxSettings, clock: Callable[[], float]) -> dict[Channel, Sink]:
    """Make the sinks by channel, to be entered as async context managers; a channel without settings has none.

    The `clock` gives seconds since 1970 UTC. Raises ValueError that names a setting and what to change.
    """
    sinks: dict[Channel, Sink] = {}
    if settings.webhook_key_file:
        keys = SigningKeys(settings.webhook_key_file, settings.webhook_previous_key_file)
        sinks[Channel.WEBHOOK] = WebhookSink(
            lambda destination: derive_secrets(keys.current(time.monotonic()), destination),
            FORMATS[settings.webhook_format],
            _egress(settings),
            settings.call_timeout_s,
            settings.calls_max,
            USER_AGENT,
            clock,
        )
    if settings.smtp_host:
        sinks[Channel.EMAIL] = EmailSink(
            _mail_server(settings),
            settings.smtp_sender,
            settings.call_timeout_s,
            min(SMTP_CONNECTIONS_MAX, settings.calls_max),
            clock,
        )
    if settings.file_directory:
        sinks[Channel.FILE] = FileSink(_directory(settings.file_directory), settings.call_timeout_s)
    return sinks


def _egress(settings: OutboxSettings) -> Egress:
    try:
        allowed = parse_networks(settings.webhook_allowed_networks)
    except ValueError as error:
        raise ValueError(
            f"ONCE_WEBHOOK_ALLOWED_NETWORKS: {error}; list networks such as 10.2.0.0/16, comma separated"
        ) from error
    proxy = urlsplit(settings.webhook_proxy)
    if settings.webhook_proxy and (proxy.scheme != "http" or not proxy.hostname or "@" in proxy.netloc):
        # without its text, which may hold a password
        raise ValueError("ONCE_WEBHOOK_PROXY is no URL of a proxy: set it to http://host:port, without credentials")
    return Egress(allowed, settings.webhook_proxy)


def _mail_server(settings: OutboxSettings) -> Server:
    if not 1 <= settings.smtp_port <= 65535:
        raise ValueError(f"ONCE_SMTP_PORT is {settings.smtp_port}: set it to a port, 587 as a rule")
    try:
        recipient_of(f"mailto:{settings.smtp_sender}")
        settings.smtp_sender.encode("ascii")
    except ValueError as error:  # UnicodeEncodeError is one
        raise ValueError(
            f"ONCE_SMTP_SENDER is {settings.smtp_sender!r}: set it to one plain ASCII address, such as "
            "ledger@example.org"
        ) from error
    if not settings.smtp_starttls and not is_loopback(settings.smtp_host):
        raise ValueError(
            f"ONCE_SMTP_STARTTLS is false and ONCE_SMTP_HOST is {settings.smtp_host!r}: mails would cross the network "
            "in clear text; set ONCE_SMTP_STARTTLS to true"
        )
    if bool(settings.smtp_user) is not bool(settings.smtp_password_file):
        raise ValueError("ONCE_SMTP_USER and ONCE_SMTP_PASSWORD_FILE belong together: set both or none")
    password = ""
    if settings.smtp_password_file:
        password = load_password(settings.smtp_password_file, "ONCE_SMTP_PASSWORD_FILE")
    return Server(
        host=settings.smtp_host,
        port=settings.smtp_port,
        helo=settings.smtp_sender.rpartition("@")[2],
        starttls=_tls(settings.smtp_ca_file) if settings.smtp_starttls else None,
        user=settings.smtp_user,
        password=password,
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise ValueError(
            f"ONCE_SMTP_CA_FILE: {ca_file} has no certificates that can be read ({error.strerror}); name a PEM file, "
            "or leave it empty for the system's"
        ) from error


def _directory(path: str) -> Path:
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"ONCE_OUTBOX_FILE_DIRECTORY: {path} cannot be made ({error.strerror}); name a directory"
        ) from error
    return directory
