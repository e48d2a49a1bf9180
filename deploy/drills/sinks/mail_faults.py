"""Faults of a mailbox, in a file, so that they also reach a mailbox in another process."""

from enum import StrEnum
from pathlib import Path

import msgspec


class Stage(StrEnum):
    """The stage at which a mail fails."""

    NONE = "none"
    RCPT = "rcpt"  # at its recipient: not accepted
    DATA = "data"  # before the message is asked for: not accepted
    MESSAGE = "message"  # when the message is there: not accepted
    ACCEPTED = "accepted"  # after it was accepted and written to the journal


class Action(StrEnum):
    """The fault at that stage."""

    ANSWER = "answer"  # `code`
    DROP = "drop"  # the connection is dropped without an answer
    WAIT = "wait"  # the answer comes after `delay_s`


class MailFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next mails fail.

    Attributes:
        at: where.
        do: what.
        code: of an ANSWER.
        delay_s: seconds of a WAIT.
        times: how many mails; None is all until the next faults.
    """

    at: Stage = Stage.NONE
    do: Action = Action.ANSWER
    code: int = 451
    delay_s: float = 1.0
    times: int | None = None


def set_faults(directory: Path, faults: MailFaults) -> None:
    """Set how the next mails of this directory's mailbox fail."""
    fresh = directory / "faults.json.new"
    fresh.write_bytes(msgspec.json.encode(faults))
    fresh.rename(directory / "faults.json")


class FaultsFile:
    """The faults of a mailbox, with a count of affected mails.

    Args:
        path: of the file; read again whenever it has changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._faults = MailFaults()
        self._taken = 0

    def due(self, stage: Stage) -> MailFaults | None:
        """The fault of this mail at this stage."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        if (status.st_ino, status.st_mtime_ns) != self._seen:
            self._seen = (status.st_ino, status.st_mtime_ns)
            self._faults = msgspec.json.decode(self._path.read_bytes(), type=MailFaults)
            self._taken = 0
        faults = self._faults
        if faults.at is not stage or (faults.times is not None and self._taken >= faults.times):
            return None
        self._taken += 1
        return faults
