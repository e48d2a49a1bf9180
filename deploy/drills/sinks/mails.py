"""The journal of a mailbox."""

from pathlib import Path
from typing import Final

import msgspec

from deploy.drills.sinks.journal import entries

JOURNAL: Final = "mailbox.jsonl"


class Mail(msgspec.Struct, frozen=True):
    """One accepted mail in the journal.

    Attributes:
        at_ms: when, milliseconds since 1970 UTC.
        message_id, subject: its headers, decoded.
        sender, recipients: of its envelope.
        user: the authenticated user; empty without AUTH.
        tls: whether it came over TLS.
        body: its text.
    """

    at_ms: int
    message_id: str
    subject: str
    sender: str
    recipients: list[str]
    user: str
    tls: bool
    body: str


def mails(directory: Path) -> list[Mail]:
    """Accepted mails of this directory's mailbox, oldest first."""
    return entries(directory / JOURNAL, Mail)
