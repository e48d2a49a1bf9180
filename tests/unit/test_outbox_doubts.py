"""The tables of doubts in services/outbox/README.md: each row holds for the sinks and the outbox's decisions."""

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import (
    ClientConnectorError,
    ClientOSError,
    ClientSession,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    SocketTimeoutError,
)

from deploy import PROJECT_ROOT
from services.outbox.domain import Done, after_call
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown, judge
from services.outbox.sinks.channels import open_sinks
from services.outbox.sinks.smtp import AnswerLostError, Connections, NoConnectionError, NotTakenError
from shared.events.effects import Channel
from tests.sinks.effects import effect
from tests.sinks.rigs import SENDER, settings
from tests.unit.test_outbox_domain import DEADLINE_MS, HOLD, NOW_MS, job

OUTCOMES: dict[str, Outcome] = {
    "Delivered": Delivered(),
    "Refused": Refused("no"),
    "Retriable": Retriable("busy"),
    "Unknown": Unknown("lost"),
}
HOOK, MAIL, FILE = "https://example.org/hook", "mailto:bob@example.org", "file:receipts"


def table(head: str) -> list[tuple[str, ...]]:
    """The cells of the README's table with this head."""
    text = (PROJECT_ROOT / "services/outbox/README.md").read_text()
    rows = text.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]


CALLS = {row[:3]: row[3] for row in table("| channel | phase | answer | outcome |")}
ENDS = table("| outcome | earlier call | keys | now | at the deadline |")


class Site:
    """Sinks whose other sides are replaced by their failures."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.path = directory / "receipts.jsonl"
        self._sinks = open_sinks(
            settings(
                directory,
                SMTP_HOST="127.0.0.1",
                SMTP_STARTTLS="false",
                SMTP_SENDER=SENDER,
                OUTBOX_FILE_DIRECTORY=str(directory),
                OUTBOX_CALL_TIMEOUT_S="0.01",
            ),
            time.time,
        )

    async def deliver(self, destination: str) -> Outcome:
        async with self._sinks[Channel(_SCHEMES[destination.partition(":")[0]])] as sink:
            return await sink.deliver(effect(1, destination))

    async def webhook(self, error: Exception) -> Outcome:
        self._monkeypatch.setattr(ClientSession, "_request", mock.AsyncMock(side_effect=error))
        return await self.deliver(HOOK)

    async def mail(self, result: Exception | str) -> Outcome:
        self._monkeypatch.setattr(Connections, "send", mock.AsyncMock(side_effect=[result]))
        return await self.deliver(MAIL)

    async def locked(self) -> Outcome:
        with self.path.open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            return await self.deliver(FILE)

    async def unopened(self) -> Outcome:
        self.path.mkdir()
        return await self.deliver(FILE)

    async def without_ids(self) -> Outcome:
        full = mock.Mock(side_effect=sqlite3.OperationalError("database or disk is full"))
        self._monkeypatch.setattr(sqlite3, "connect", full)
        outcome = await self.deliver(FILE)
        assert not self.path.read_bytes()
        return outcome

    async def full(self, *, left: bool) -> Outcome:
        write = os.write
        self._monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        if left:
            self._monkeypatch.setattr(os, "ftruncate", mock.Mock(side_effect=OSError(errno.EIO, "I/O")))
        outcome = await self.deliver(FILE)
        assert bool(self.path.read_bytes()) is left
        return outcome


_SCHEMES = {"https": "webhook", "mailto": "email", "file": "file"}
NO_CONNECTION = ClientConnectorError(mock.Mock(), OSError(errno.ECONNREFUSED, "refused"))

SITES: dict[tuple[str, str, str], tuple[Callable[[Site], Awaitable[Outcome]], ...]] = {
    ("webhook", "before the request left", "the destination is no URL that can be called"): (
        lambda site: site.deliver("https://"),
    ),
    ("webhook", "before the request left", "no connection: refused, no address, TLS, too late"): (
        lambda site: site.webhook(NO_CONNECTION),
        lambda site: site.webhook(ConnectionTimeoutError()),
    ),
    ("webhook", "after the request left", "none in time, or the connection was lost"): (
        lambda site: site.webhook(TimeoutError()),
        lambda site: site.webhook(SocketTimeoutError()),
        lambda site: site.webhook(ServerDisconnectedError()),
        lambda site: site.webhook(ClientOSError(errno.EPIPE, "broken pipe")),
        lambda site: site.webhook(ConnectionResetError()),
    ),
    ("e-mail", "before the message", "the address cannot be used, 5xx"): (
        lambda site: site.deliver("mailto:bob"),
        lambda site: site.mail(NotTakenError("RCPT", 550, "no such user")),
    ),
    ("e-mail", "before the message", "no connection, lost, none in time, 4xx, credentials refused"): (
        lambda site: site.mail(NoConnectionError("refused")),
        lambda site: site.mail(NotTakenError("RCPT", 451, "greylisted")),
        lambda site: site.mail(NotTakenError("MAIL", 530, "authenticate")),
    ),
    ("e-mail", "after the message", "none in time, lost, or none that makes sense"): (
        lambda site: site.mail(AnswerLostError("no answer")),
    ),
    ("e-mail", "answered", "2xx"): (lambda site: site.mail("250 queued"),),
    ("e-mail", "answered", "4xx"): (lambda site: site.mail(NotTakenError("the message", 452, "full")),),
    ("e-mail", "answered", "5xx"): (lambda site: site.mail(NotTakenError("the message", 554, "spam")),),
    ("file", "before the line is written", "the name cannot be used"): (lambda site: site.deliver("file:A"),),
    ("file", "before the line is written", "locked, or not to be opened; no space for the ids of its lines"): (
        Site.locked,
        Site.unopened,
        Site.without_ids,
    ),
    ("file", "while the line is written", "no space, and nothing is left of it"): (lambda site: site.full(left=False),),
    ("file", "while the line is written", "a part of it is left"): (lambda site: site.full(left=True),),
    ("file", "written", "it is in the file, now or from before"): (lambda site: site.deliver(FILE),),
}


def test_every_row_of_calls_is_tested() -> None:
    assert {row for row in CALLS if row[:2] != ("webhook", "answered")} == SITES.keys()


@pytest.mark.parametrize(
    ("row", "fail"),
    [
        pytest.param(row, fail, id=f"{row[0]}-{row[1]}-{number}")
        for row, fails in SITES.items()
        for number, fail in enumerate(fails)
    ],
)
async def test_a_call_that_fails_has_its_outcome(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row: tuple[str, str, str],
    fail: Callable[[Site], Awaitable[Outcome]],
) -> None:
    outcome = await fail(Site(tmp_path, monkeypatch))
    assert type(outcome).__name__ == CALLS[row]


def test_every_status_of_a_webhook_has_its_outcome() -> None:
    rows = [(answer, outcome) for (*where, answer), outcome in CALLS.items() if where == ["webhook", "answered"]]
    named = {code: outcome for answer, outcome in rows for code in answer.replace("other ", "").split(", ")}
    for status in [0, 99, 101, *range(200, 600), 600, 999]:
        group = f"{status // 100}xx"
        expected = named.get(str(status)) or named.get(group) or named["no status of a final answer"]
        assert type(judge(status, "", None, b"", 0.0)).__name__ == expected, status


@pytest.mark.parametrize(
    "case", list(product(OUTCOMES, ("not accepted", "may be accepted"), ("yes", "no"))), ids="-".join
)
@pytest.mark.parametrize("late", [False, True], ids=["now", "at the deadline"])
def test_an_effect_ends_as_the_table_says(case: tuple[str, str, str], late: bool) -> None:
    [row] = [row for row in ENDS if all(cell in {"any", is_} for cell, is_ in zip(row, case, strict=False))]
    outcome, earlier, keys = case
    called = job(attempts=1, takes_keys=keys == "yes", doubtful=earlier == "may be accepted")
    decision = after_call(called, OUTCOMES[outcome], HOLD, NOW_MS + DEADLINE_MS * late, 0.0)
    if isinstance(decision, Done):
        assert decision.result.state == row[4 if late else 3]
    else:
        assert row[3] == ("waits, in doubt" if decision.job.doubtful else "waits")
        assert not late
        # The claim of a doubt stays: it shows the doubt to the next owner if this one dies before its commit
        assert decision.release is not decision.job.doubtful
