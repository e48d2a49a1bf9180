"""A mail server over real SMTP, with STARTTLS and AUTH, that keeps a journal of accepted mails and fails on demand.

It knows no keys: the same message sent twice is two entries of its journal. Its directory holds:

    mailbox.jsonl  the accepted mails
    ca.pem         the authority that clients must trust; made for this mailbox alone
    faults.json    MailFaults: how the next mails fail; read again after each change

Run it within a test (`async with Mailbox(...)`) or as a process of its own:
`python -m deploy.drills.sinks.mailbox --port 0 --directory DIR [--user USER --password-file FILE]`; it prints its
port once it listens. It runs on asyncio's own loop: uvloop does not support how aiosmtpd starts TLS.
"""

import asyncio
import hmac
import logging
import os
import ssl
import time
from contextlib import ExitStack
from email import message_from_bytes, policy
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

import click
import trustme
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from deploy.drills.sinks.journal import Journal
from deploy.drills.sinks.mail_faults import Action, FaultsFile, MailFaults, Stage, set_faults
from deploy.drills.sinks.mails import JOURNAL, Mail, mails
from deploy.drills.sinks.serving import serve

__all__ = ["Action", "Mail", "MailFaults", "Mailbox", "Stage", "mails", "set_faults"]

LOOPBACK = "127.0.0.1"
_IDLE_S = 60.0


class Mailbox:
    """The mail server.

    Args:
        directory: see the module.
        user, password: that AUTH demands; an empty user demands none.
        port: to listen on; 0 picks one.
        tls: whether it demands STARTTLS.
        smtputf8: whether it takes addresses beyond ASCII.
    """

    def __init__(
        self,
        directory: Path,
        user: str = "",
        password: str = "",
        port: int = 0,
        *,
        tls: bool = True,
        smtputf8: bool = False,
    ) -> None:
        self.directory = directory
        self.ca_file = directory / "ca.pem"
        self.port = port
        self.connections = 0  # accepted so far
        self._user = user
        self._password = password
        self._tls = tls
        self._smtputf8 = smtputf8
        self._journal: Journal[Mail] = Journal(directory / JOURNAL)
        self._faults = FaultsFile(directory / "faults.json")
        self._open = ExitStack()
        self._server: asyncio.Server | None = None
        self._sessions: WeakSet[SMTP] = WeakSet()

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return sum(session.transport is not None for session in self._sessions)

    def fail(self, faults: MailFaults) -> None:
        """Set how the next mails fail."""
        set_faults(self.directory, faults)

    def mails(self) -> list[Mail]:
        """Its accepted mails, oldest first."""
        return mails(self.directory)

    async def __aenter__(self) -> Self:
        self._open.enter_context(self._journal)
        context = _certificate(self.directory) if self._tls else None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._session(context, loop), LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._drop_sessions()
        self._open.close()

    async def _drop_sessions(self) -> None:
        """Close all connections, as a server's death does."""
        sessions = list(self._sessions)
        for session in sessions:
            if isinstance(session.transport, asyncio.WriteTransport):
                session.transport.abort()
        # aiosmtpd offers no other way to wait until a session has ended
        ended = [one for one in (session._handler_coroutine for session in sessions) if one is not None]  # noqa: SLF001
        await asyncio.gather(*ended, return_exceptions=True)

    def _session(self, context: ssl.SSLContext | None, loop: asyncio.AbstractEventLoop) -> SMTP:
        self.connections += 1
        session = _Session(
            _Handler(self._journal, self._faults),
            hostname="localhost",
            tls_context=context,
            require_starttls=context is not None,
            auth_required=bool(self._user),
            auth_require_tls=context is not None,
            authenticator=self._authenticate,
            timeout=_IDLE_S,
            enable_SMTPUTF8=self._smtputf8,
            loop=loop,
        )
        self._sessions.add(session)
        return session

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, credentials: Any
    ) -> AuthResult:
        del server, session, envelope, mechanism
        right = isinstance(credentials, LoginPassword) and (
            credentials.login == self._user.encode()
            and hmac.compare_digest(credentials.password, self._password.encode())
        )
        return AuthResult(success=right, handled=False, auth_data=credentials)


class _Handler:
    """aiosmtpd finds its hooks by these names."""

    def __init__(self, journal: Journal[Mail], faults: FaultsFile) -> None:
        self._journal = journal
        self._faults = faults

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        del session, options
        answer = await self.fail(Stage.RCPT, server)
        if answer is None:
            envelope.rcpt_tos.append(address)
        return answer or "250 2.1.5 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - as above
        answer = await self.fail(Stage.MESSAGE, server)
        if answer is not None:
            return answer
        self._journal.append(_mail(session, envelope))
        return await self.fail(Stage.ACCEPTED, server) or "250 2.0.0 accepted"

    async def fail(self, stage: Stage, server: SMTP) -> str | None:
        """Apply the fault at this stage; returns the answer, None for the usual one."""
        faults = self._faults.due(stage)
        if faults is None:
            return None
        if faults.do is Action.ANSWER:
            return f"{faults.code} a fault on demand"
        if faults.do is Action.WAIT:
            await asyncio.sleep(faults.delay_s)
            return None
        if isinstance(server.transport, asyncio.WriteTransport):
            server.transport.abort()
        await asyncio.get_running_loop().create_future()  # cancelled once the connection is gone
        return None


class _Session(SMTP):
    """A session that can fail before it asks for the message, where aiosmtpd has no hook."""

    def __init__(self, handler: "_Handler", **options: Any) -> None:
        super().__init__(handler, **options)
        self._handler = handler

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802 - aiosmtpd's name
        answer = await self._handler.fail(Stage.DATA, self)
        if answer is None:
            await super().smtp_DATA(arg)
        else:
            await self.push(answer)


def _mail(session: Session, envelope: Envelope) -> Mail:
    message = message_from_bytes(cast("bytes", envelope.content), policy=policy.default)  # the server decodes nothing
    body = message.get_body(("plain",))
    credentials = cast("object", session.auth_data)
    return Mail(
        at_ms=time.time_ns() // 1_000_000,
        message_id=str(message["Message-ID"]),
        subject=str(message["Subject"]),
        sender=envelope.mail_from or "",
        recipients=envelope.rcpt_tos,
        user=credentials.login.decode() if isinstance(credentials, LoginPassword) else "",
        tls=session.ssl is not None,
        body="" if body is None else body.get_content(),
    )


def _certificate(directory: Path) -> ssl.SSLContext:
    """A certificate for the loopback, the same one after a restart."""
    ca_file, server_file = directory / "ca.pem", directory / "server.pem"
    if not server_file.exists():
        authority = trustme.CA()
        certificate = authority.issue_cert(LOOPBACK, "localhost")
        authority.cert_pem.write_to_path(ca_file)
        descriptor = os.open(server_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate.private_key_and_cert_chain_pem.bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server_file)
    return context


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", type=int, default=0)
@click.option("--directory", type=click.Path(path_type=Path), required=True)
@click.option("--user", default="")
@click.option("--password-file", type=click.Path(path_type=Path))
def main(port: int, directory: Path, user: str, password_file: Path | None) -> None:
    """Run one until SIGTERM."""
    password = "" if password_file is None else password_file.read_text().rstrip("\n")
    logging.getLogger("mail.log").setLevel(logging.ERROR)  # it warns of its own use of a deprecated name
    asyncio.run(serve(Mailbox(directory, user, password, port)))


if __name__ == "__main__":
    main(prog_name="python -m deploy.drills.sinks.mailbox")
