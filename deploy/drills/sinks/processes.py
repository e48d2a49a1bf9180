"""Receivers as separate processes: they outlive the outbox that calls them, and use another core."""

import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.sinks.journal import entries
from deploy.drills.sinks.mail_faults import MailFaults, set_faults
from deploy.drills.sinks.mails import Mail, mails
from deploy.drills.sinks.receiver import LOOPBACK, Counts, Delivery, Faults
from deploy.local.ports import free_ports
from deploy.local.process import ManagedProcess

_ANSWER_S = 10.0
_START_S = 60.0


class _SinkProcess:
    """One process that listens on a port of its own; open it as a context manager.

    Args:
        module: of deploy.drills.sinks.
        directory: for its log and its files; made when it is not there.
        arguments: of the command line, the port left out.
    """

    def __init__(self, module: str, directory: Path, arguments: list[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_ports(1)[0]
        argv = [sys.executable, "-m", f"deploy.drills.sinks.{module}", "--port", str(self.port), *arguments]
        self.process = ManagedProcess(module, argv, {}, directory / f"{module}.log", cwd=PROJECT_ROOT)

    def start(self) -> Self:
        """Start it, or start it again on the same port and journal, and wait until it listens.

        Raises:
            TimeoutError: it does not listen in time; the message has the end of its log.
        """
        lines = self._lines()
        self.process.start()
        end_s = time.monotonic() + _START_S
        while not self._listens(lines):
            if not self.process.running or time.monotonic() > end_s:
                raise TimeoutError(f"{self.process.name} does not listen:\n{self.process.log_tail()}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()

    def _lines(self) -> int:
        return len(self.process.log_tail(1_000_000).splitlines())

    def _listens(self, lines: int) -> bool:
        return str(self.port) in self.process.log_tail(1_000_000).splitlines()[lines:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class ReceiverProcess(_SinkProcess):
    """deploy.drills.sinks.receiver.

    Args:
        directory: for its journal.
        key_file: the outbox's key; None checks no signatures.
    """

    def __init__(self, directory: Path, key_file: Path | None = None) -> None:
        self.journal = directory / "deliveries.jsonl"
        keys = [] if key_file is None else ["--key-file", str(key_file)]
        super().__init__("receiver", directory, ["--log", str(self.journal), *keys])

    @property
    def url(self) -> str:
        """The URL for deliveries."""
        return f"http://{LOOPBACK}:{self.port}/hook"

    def fail(self, faults: Faults) -> None:
        """Set how the next calls fail."""
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}/faults", data=msgspec.json.encode(faults), method="POST"
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S):  # noqa: S310 - as above
            pass

    def counts(self) -> Counts:
        """Counts of calls so far."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/deliveries", timeout=_ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(), type=Counts)

    def deliveries(self) -> list[Delivery]:
        """Its journal, oldest first; also while it does not run."""
        return entries(self.journal, Delivery)


class MailboxProcess(_SinkProcess):
    """deploy.drills.sinks.mailbox, with STARTTLS.

    Args:
        directory: for its files.
        user, password: that AUTH demands; an empty user demands none.
    """

    def __init__(self, directory: Path, user: str = "", password: str = "") -> None:
        self.ca_file = directory / "ca.pem"
        self.password_file = directory / "password"
        arguments = ["--directory", str(directory)]
        if user:
            arguments += ["--user", user, "--password-file", str(self.password_file)]
        super().__init__("mailbox", directory, arguments)
        if user:
            self.password_file.write_text(password)

    def fail(self, faults: MailFaults) -> None:
        """Set how the next mails fail."""
        set_faults(self.directory, faults)

    def mails(self) -> list[Mail]:
        """Its accepted mails, oldest first; also while it does not run."""
        return mails(self.directory)
