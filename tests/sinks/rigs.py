"""Each sink with its real other side behind one interface, for the contract suite."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from aiohttp import web

from deploy.drills.sinks.journal import entries
from deploy.drills.sinks.mailbox import Action, Mailbox, MailFaults, Stage
from deploy.drills.sinks.receiver import LOOPBACK, Delivery, Faults, Mode, Receiver, What
from deploy.local.ports import LOOPBACK_NETWORK
from deploy.verification import effect_ids
from services.outbox.outcomes import Sink
from services.outbox.sinks.channels import open_sinks
from shared.events.effects import Channel
from shared.settings import OutboxSettings, load

PATIENT_S = 20.0  # no call of a test takes as long, however busy the machine
SHORT_S = 2.0
KEY = bytes(range(32))
SENDER = "ledger@example.org"
USER, PASSWORD = "once", "correct horse"


class Trouble(StrEnum):
    """How the other side fails the next calls."""

    REFUSE = "refuse"  # permanently
    PUT_OFF = "put_off"  # temporarily
    LOSE_ANSWER = "lose_answer"  # taken, but the answer is lost
    ANSWER_LATE = "answer_late"  # taken, but answered after the call's timeout


class Rig(Protocol):
    """A sink with its other side.

    Attributes:
        sink: open.
        destination: of deliveries.
        answers: whether there is an answer that can be lost.
    """

    sink: Sink
    destination: str
    answers: bool

    async def fail(self, trouble: Trouble) -> None:
        """Set how the next calls fail."""
        ...

    async def heal(self) -> None:
        """End the faults."""
        ...

    async def vanish(self) -> None:
        """Shut the other side down."""
        ...

    def effects(self) -> list[str]:
        """Ids of the effects made, from the other side's log; the same id twice is two effects."""
        ...

    def second(self) -> Sink:
        """Another instance's sink to the same place, not open."""
        ...


def settings(directory: Path, **variables: str) -> OutboxSettings:
    """The outbox's settings with these variables, ONCE_ prefix left out, a long timeout and a key file."""
    key_file = directory / "webhook.key"
    key_file.write_bytes(KEY)
    given = {
        "BOOTSTRAP_SERVERS": f"{LOOPBACK}:1",
        "REDIS_URL": f"redis://{LOOPBACK}:1/0",
        "OUTBOX_CALL_TIMEOUT_S": str(PATIENT_S),
        "WEBHOOK_KEY_FILE": str(key_file),
        "WEBHOOK_ALLOWED_NETWORKS": LOOPBACK_NETWORK,
        **variables,
    }
    return load(OutboxSettings, {f"ONCE_{name}": value for name, value in given.items()})


def mail_settings(mailbox: Mailbox, directory: Path, **variables: str) -> OutboxSettings:
    """The settings for this mailbox."""
    password_file = directory / "smtp.password"
    password_file.write_text(f"{PASSWORD}\n")
    given = {
        "SMTP_HOST": LOOPBACK,
        "SMTP_PORT": str(mailbox.port),
        "SMTP_CA_FILE": str(mailbox.ca_file),
        "SMTP_USER": USER,
        "SMTP_PASSWORD_FILE": str(password_file),
        "SMTP_SENDER": SENDER,
    }
    return settings(directory, **{**given, **variables})


class CountingReceiver(Receiver):
    """A receiver that knows how many signatures the last call had."""

    signatures = 0

    def _signed(self, request: web.BaseRequest, body: bytes) -> bool | None:
        self.signatures = len(request.headers["webhook-signature"].split())
        return super()._signed(request, body)


class WebhookRig:
    """A webhook and its receiver."""

    answers = True

    def __init__(self, receiver: Receiver, directory: Path, timeout_s: float) -> None:
        self.receiver = receiver
        self.destination = receiver.url
        self._timeout_s = timeout_s
        self._settings = settings(directory, OUTBOX_CALL_TIMEOUT_S=str(timeout_s))
        self.sink = self.second()

    async def fail(self, trouble: Trouble) -> None:
        self.receiver.fail(
            {
                Trouble.REFUSE: Faults(Mode.STATUS, status=410),
                Trouble.PUT_OFF: Faults(Mode.STATUS, status=429),
                Trouble.LOSE_ANSWER: Faults(Mode.LOST_ANSWER),
                Trouble.ANSWER_LATE: Faults(Mode.SLOW, delay_s=self._timeout_s + 0.3),
            }[trouble]
        )

    async def heal(self) -> None:
        self.receiver.fail(Faults())

    async def vanish(self) -> None:
        await self.receiver.__aexit__(None, None, None)

    def effects(self) -> list[str]:
        return [entry.key for entry in entries(self.receiver.log, Delivery) if entry.what is What.PROCESSED]

    def second(self) -> Sink:
        return open_sinks(self._settings, time.time)[Channel.WEBHOOK]


class EmailRig:
    """E-mail and its mailbox."""

    answers = True
    destination = "mailto:somebody@example.org"

    def __init__(self, mailbox: Mailbox, directory: Path, timeout_s: float) -> None:
        self.mailbox = mailbox
        self._timeout_s = timeout_s
        self._settings = mail_settings(mailbox, directory, OUTBOX_CALL_TIMEOUT_S=str(timeout_s))
        self.sink = self.second()

    async def fail(self, trouble: Trouble) -> None:
        self.mailbox.fail(
            {
                Trouble.REFUSE: MailFaults(Stage.RCPT, Action.ANSWER, code=550),
                Trouble.PUT_OFF: MailFaults(Stage.MESSAGE, Action.ANSWER, code=451),
                Trouble.LOSE_ANSWER: MailFaults(Stage.ACCEPTED, Action.DROP),
                Trouble.ANSWER_LATE: MailFaults(Stage.ACCEPTED, Action.WAIT, delay_s=self._timeout_s),
            }[trouble]
        )

    async def heal(self) -> None:
        self.mailbox.fail(MailFaults())

    async def vanish(self) -> None:
        await self.mailbox.__aexit__(None, None, None)

    def effects(self) -> list[str]:
        return [mail.message_id.strip("<>").removesuffix("@example.org") for mail in self.mailbox.mails()]

    def second(self) -> Sink:
        return open_sinks(self._settings, time.time)[Channel.EMAIL]


class FileRig:
    """A file and its directory."""

    answers = False

    def __init__(self, directory: Path) -> None:
        self.destination = "file:receipts"
        self.path = directory / "files" / "receipts.jsonl"
        self._settings = settings(directory, OUTBOX_FILE_DIRECTORY=str(self.path.parent))
        self.sink = self.second()

    async def fail(self, trouble: Trouble) -> None:
        if trouble is Trouble.REFUSE:
            self.destination = "file:../receipts"
        else:
            self.path.mkdir()  # no file can be opened there

    async def heal(self) -> None:
        self.destination = "file:receipts"
        if self.path.is_dir():
            self.path.rmdir()

    async def vanish(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()

    def effects(self) -> list[str]:
        return list(effect_ids(self.path)) if self.path.is_file() else []

    def second(self) -> Sink:
        return open_sinks(self._settings, time.time)[Channel.FILE]


@asynccontextmanager
async def rig_of(channel: Channel, directory: Path, timeout_s: float = PATIENT_S) -> AsyncIterator[Rig]:
    """The rig of a channel, its sink open; a call of it may take `timeout_s` seconds."""
    if channel is Channel.WEBHOOK:
        async with Receiver(directory / "deliveries.jsonl", KEY) as receiver:
            webhook = WebhookRig(receiver, directory, timeout_s)
            async with webhook.sink:
                yield webhook
    elif channel is Channel.EMAIL:
        async with Mailbox(directory, USER, PASSWORD) as mailbox:
            mail = EmailRig(mailbox, directory, timeout_s)
            async with mail.sink:
                yield mail
    else:
        file = FileRig(directory)
        async with file.sink:
            yield file
