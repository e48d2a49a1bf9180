"""The cluster and the local stack that a command works on: how they are found, and how one record is written."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

from deploy import PROJECT_ROOT
from deploy.cli.output import FC, failing_on
from deploy.clients.keyring import Keyring
from deploy.clients.local import client_files
from deploy.local.supervisor import state
from shared import settings
from shared.events.clients import is_client
from shared.events.headers import Headers
from shared.kafka.client.access import Access, Tls, tls_of
from shared.kafka.client.errors import RecordTooLargeError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count


def default_directory() -> Path:
    """The stack's directory: ONCE_DIR if set, else `.once` in the project's root."""
    chosen = settings.once_directory()
    return Path(chosen).resolve() if chosen else PROJECT_ROOT / ".once"


def find_access(named: str | None = None) -> Access | None:
    """The named brokers, else those of ONCE_BOOTSTRAP_SERVERS, else the local stack's; None when there are none.

    The TLS files are ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE, else the local stack's if the brokers are its own.

    Raises:
        SettingsError: one of the files is not set, or cannot be used.
    """
    stack = state.running(default_directory())
    brokers = named or settings.bootstrap_servers() or (None if stack is None else stack.bootstrap_servers)
    if brokers is None:
        return None
    tls = tls_of(*settings.tls_files())
    if tls is None and stack is not None and stack.tls is not None and stack.bootstrap_servers == brokers:
        tls = Tls(stack.tls.ca_file, stack.tls.identity_file)
    if tls is not None:
        tls.context()
    return Access(brokers, tls)


def _or_none(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Access | None:
    return find_access(value)


def _or_found(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Access:
    return require(find_access(value))


def require(found: Access | None) -> Access:
    """Return the brokers; raise ClickException with what to do if there are none."""
    if found is None:
        raise click.ClickException(
            "no cluster: start the local stack with `once up`, or name one by --bootstrap-servers or "
            "ONCE_BOOTSTRAP_SERVERS"
        )
    return found


def _as_path(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    return default_directory() if value is None else value.resolve()


_BROKERS = "Kafka brokers.  [default: $ONCE_BOOTSTRAP_SERVERS or the local stack's]"
brokers_option = click.option("--bootstrap-servers", "brokers", callback=_or_found, help=_BROKERS)
"""The option of every command that talks to the cluster; the command gets an `Access`, `brokers`."""

optional_brokers_option = click.option("--bootstrap-servers", "brokers", callback=_or_none, help=_BROKERS)
"""The same, of a command that does not always need them: `brokers` may be None, see `require`."""

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_as_path,
    help="Directory for data, logs and state.  [default: $ONCE_DIR or .once in the project's root]",
)
"""The option of the local stack's commands."""


def client_name(value: str) -> str:
    """The type of an argument that names a client of the gateway."""
    if not is_client(value):
        raise click.BadParameter(
            "a client's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first two"
        )
    return value


def _as_keyring(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Keyring:
    own = client_files(default_directory()).keys
    named = value or settings.api_keys_file()
    if named is None and not own.exists():
        raise click.UsageError("name the gateway's file of keys by --file or ONCE_GATEWAY_API_KEYS_FILE")
    return Keyring(Path(named or own))


api_keys_option = click.option(
    "--file",
    "keyring",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_as_keyring,
    help="File of keys.  [default: $ONCE_GATEWAY_API_KEYS_FILE or the local stack's]",
)
"""The option of commands on the gateway's keys; the command gets a `Keyring`, `keyring`."""


def timeout_option(text: str, default_s: float) -> Callable[[FC], FC]:
    """The option `--timeout` of a command that waits for the cluster; the command gets `timeout_s`."""
    seconds = click.FloatRange(min=0)
    return click.option("--timeout", "timeout_s", type=seconds, default=default_s, show_default=True, help=text)


def partitions_of(brokers: Access, topic: str) -> int:
    """Return a topic's partition count: the installation's, whatever ONCE_PARTITIONS says here.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    return asyncio.run(partition_count(brokers, [topic]))


def write(
    brokers: Access, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> str:
    """Write one record, wait until all in-sync replicas have it, and return its coordinates: `payments.raw:3:1207`.

    Raises:
        KafkaUnavailableError: it was not acknowledged; it may be written later. Every command may be given again.
        ClickException: the topic takes no record of that size.
    """

    async def send() -> str:
        async with IdempotentWriter(brokers) as writer:
            written = await writer.send(topic, partition, key, value, headers)
            return f"{written.topic}:{written.partition}:{written.offset}"

    with failing_on(RecordTooLargeError):
        return asyncio.run(send())
