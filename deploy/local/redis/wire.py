"""One command to a Redis, and its answer: the Redis protocol (RESP2) over a socket, without a client library.

Each command has a connection of its own. This module must not know what a command does.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRWPair
from pathlib import Path

from deploy.local.ports import LOOPBACK
from deploy.security.files import read_password
from shared.kafka.client.access import Tls
from shared.settings import SettingsError

ANSWER_TIMEOUT_S = 5.0


class RedisCommandError(RuntimeError):
    """Redis refused a command, or the connection ended before its answer."""


@dataclass(frozen=True, slots=True)
class Login:
    """How a user comes into a secured Redis.

    Attributes:
        user: its name.
        password_file: has its password. Read at each connection, so that a changed one counts.
        tls: whom to trust, and what to show.
    """

    user: str
    password_file: Path
    tls: Tls


def command(port: int, *words: str, login: Login | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
    """Send one command to a Redis on loopback, and return its simple or bulk string, or integer.

    Args:
        port: of Redis.
        words: the command and its arguments.
        login: None for a Redis that asks for none.
        timeout_s: seconds for the connection, and for each answer.

    Raises:
        RedisCommandError: it was refused, or not answered, or the login's files cannot be used.
    """
    try:
        with _connection(port, login, timeout_s) as stream:
            if login is not None:
                _ask(stream, "AUTH", login.user, read_password(login.password_file))
            return _ask(stream, *words)
    except (OSError, SettingsError) as error:
        raise RedisCommandError(f"{words[0]}: {error}") from error


@contextmanager
def _connection(port: int, login: Login | None, timeout_s: float) -> Iterator[BufferedRWPair]:
    with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as plain:
        if login is None:
            with plain.makefile("rwb") as stream:
                yield stream
            return
        with (
            login.tls.context().wrap_socket(plain, server_hostname=LOOPBACK) as secured,
            secured.makefile("rwb") as stream,
        ):
            yield stream


def _ask(stream: BufferedRWPair, *words: str) -> str:
    encoded = [word.encode() for word in words]
    stream.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded))
    stream.flush()
    head = stream.readline().decode()
    if head.startswith("$"):
        return stream.read(int(head[1:])).decode()
    if not head.startswith(("+", ":")):
        raise RedisCommandError(f"{words[0]}: {head.strip() or 'no answer'}")
    return head[1:].strip()
