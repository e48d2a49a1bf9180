"""The e-mail sink and servers that violate SMTP: no error is raised, and no connection stays open."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from aiosmtplib import SMTP

from deploy.drills.sinks.receiver import LOOPBACK
from services.outbox.outcomes import Delivered, Outcome, Retriable, Sink, Unknown
from services.outbox.sinks import smtp
from services.outbox.sinks.channels import open_sinks
from services.outbox.sinks.smtp import Connection, NoConnectionError
from shared.events.effects import Channel
from tests.harness import eventually
from tests.sinks.effects import effect
from tests.sinks.rigs import SHORT_S, settings

TO = "mailto:somebody@example.org"
HELLO = [b"220 h", b"250 h"]
ENVELOPE = [*HELLO, b"250 sender", b"250 recipient"]


class Scripted:
    """A server that gives these answers in turn, for any command, and never closes a connection."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self._open = self._made = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def left(self) -> bool:
        """Return whether there was a connection and none is open."""
        return self._made > 0 and self._open == 0

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open, self._made = self._open + 1, self._made + 1
        end = b"\n"
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers:
                writer.write(answer + b"\r\n")
                await reader.readuntil(end)
                end = b"\r\n.\r\n" if answer.startswith(b"354") else b"\n"
            await reader.read()
        self._open -= 1
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


def email(directory: Path, server: Scripted, **variables: str) -> Sink:
    """Open a sink to this server, in plain text."""
    given = {"SMTP_HOST": LOOPBACK, "SMTP_PORT": str(server.port), "SMTP_SENDER": "a@example.org"}
    quick = {"SMTP_STARTTLS": "false", "OUTBOX_CALL_TIMEOUT_S": str(SHORT_S)}
    return open_sinks(settings(directory, **quick, **given, **variables), time.time)[Channel.EMAIL]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([], Retriable),
        ([b"nonsense"], Retriable),
        ([b"554 not today"], Retriable),
        ([b"220 h", b"nonsense"], Retriable),
        ([b"220 h", b"502 what?", b"502 what?"], Retriable),
        ([*HELLO, b"nonsense"], Retriable),
        ([*HELLO, b"150 wait"], Retriable),
        ([*ENVELOPE, b"nonsense"], Retriable),
        ([*ENVELOPE, b"354 go", b"nonsense"], Unknown),
        ([*ENVELOPE, b"354 go", b"x" * 9000], Unknown),
        ([*ENVELOPE, b"354 go"], Unknown),
        ([*ENVELOPE, b"354 go", b"250-yes\r\n250 really"], Delivered),
    ],
)
async def test_a_server_that_violates_smtp(tmp_path: Path, answers: list[bytes], kind: type[Outcome]) -> None:
    async with Scripted(answers) as server:
        async with email(tmp_path, server) as sink:
            assert isinstance(await sink.deliver(effect(1, TO)), kind)
        await eventually(server.left, "the sink closed the connection", smtp.IDLE_S / 2)


async def test_an_invalid_challenge(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    login = {"SMTP_USER": "once", "SMTP_PASSWORD_FILE": str(password)}
    challenge = [b"220 h", b"250-h\r\n250 AUTH CRAM-MD5", b"334 a"]
    async with Scripted(challenge) as server, email(tmp_path, server, **login) as sink:
        assert isinstance(await sink.deliver(effect(1, TO)), Retriable)


async def test_an_invalid_host(tmp_path: Path) -> None:
    given = settings(tmp_path, SMTP_HOST="a..b", SMTP_SENDER="a@example.org")
    async with open_sinks(given, time.time)[Channel.EMAIL] as sink:
        assert isinstance(await sink.deliver(effect(1, TO)), Retriable)


async def test_a_connection_that_was_lost_takes_no_message() -> None:
    with pytest.raises(NoConnectionError):
        await Connection(SMTP()).message(b"text\r\n.\r\n", SHORT_S)
