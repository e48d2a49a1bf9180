"""One command to a Redis on this machine, over a connection of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Connection, SSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from deploy.local.ports import LOOPBACK
from deploy.security.files import read_password
from shared.kafka.client.access import Tls
from shared.settings import SettingsError

ANSWER_TIMEOUT_S = 5.0


class RedisCommandError(RuntimeError):
    """Redis refused a command, or the connection ended before its answer."""


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a user of a secured Redis.

    Attributes:
        user: its name.
        password_file: has its password. It is read at each connection, so a changed password takes effect.
        tls: the authority to trust, and the certificate to present.
    """

    user: str
    password_file: Path
    tls: Tls


def command(port: int, *words: str, login: Login | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """Send one command, and return its string or integer.

    Args:
        port: on loopback.
        words: the command and its arguments.
        login: None for a Redis without users.
        timeout_s: seconds for the connection, and for each answer.

    Raises:
        RedisCommandError: it was refused, or not answered, or the login's files cannot be used.
    """
    try:
        connection = _connection(port, login, timeout_s)
        try:
            connection.connect()
            connection.send_command(*words)
            return str(connection.read_response())
        finally:
            connection.disconnect()
    except (OSError, RedisError, SettingsError) as error:
        raise RedisCommandError(f"{words[0]}: {error}") from error


def _connection(port: int, login: Login | None, timeout_s: float) -> Any:  # the client types none of its methods
    options: dict[str, Any] = {
        "host": LOOPBACK,
        "port": port,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        "protocol": 2,
        "driver_info": None,  # a user may have no right to CLIENT SETINFO
    }
    if login is None:
        return Connection(**options)  # type: ignore[no-untyped-call] # likewise
    return SSLConnection(
        **options,
        username=login.user,
        password=read_password(login.password_file),
        ssl_ca_certs=login.tls.ca_file,
        ssl_certfile=login.tls.identity_file,
    )
