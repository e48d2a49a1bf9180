"""The e-mail sink over real SMTP: mails that were not accepted, mails in doubt, and connections."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
import uvloop

from deploy.drills.sinks.mailbox import Action, Mailbox, MailFaults, Stage
from deploy.drills.sinks.processes import MailboxProcess
from deploy.drills.sinks.receiver import LOOPBACK
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Sink, Unknown
from services.outbox.sinks import smtp
from services.outbox.sinks.channels import SMTP_CONNECTIONS_MAX, open_sinks
from shared.events.effects import Channel, EffectRequest
from tests.harness import eventually
from tests.sinks.effects import effect
from tests.sinks.rigs import PASSWORD, SHORT_S, USER, mail_settings, settings

TO = "mailto:somebody@example.org"
CALL_S = 3 * SHORT_S  # half of it is for the connection, TLS and AUTH


@pytest_asyncio.fixture
async def mailbox(tmp_path: Path) -> AsyncIterator[Mailbox]:
    """A mailbox with TLS and AUTH."""
    async with Mailbox(tmp_path, USER, PASSWORD) as running:
        yield running


@pytest_asyncio.fixture
async def sink(mailbox: Mailbox) -> AsyncIterator[Sink]:
    """A sink with that mailbox's credentials."""
    async with email(mailbox) as opened:
        yield opened


def email(mailbox: Mailbox, **variables: str) -> Sink:
    return open_sinks(mail_settings(mailbox, mailbox.directory, **variables), time.time)[Channel.EMAIL]


async def call(mailbox: Mailbox, **variables: str) -> Outcome:
    async with email(mailbox, **variables) as opened:
        return await opened.deliver(effect(1, TO))


async def test_a_mail_arrives_unaltered(mailbox: Mailbox, sink: Sink) -> None:
    reference = "für Zoë\r\nBcc: other@example.org\r\n.\r\nMAIL FROM:<x@example.org>\u2028\u202e end"
    request = effect(7, TO, payment_id=". first", reference=reference)
    assert await sink.deliver(request) == Delivered("250 2.0.0 accepted")
    (mail,) = mailbox.mails()
    assert mail.message_id == f"<{request.effect_id}@example.org>"
    assert (mail.sender, mail.recipients) == ("ledger@example.org", ["somebody@example.org"])
    assert (mail.tls, mail.user) == (True, USER)
    assert mail.subject == "Receipt: 12.50 EUR debited from account 2378"
    lines = mail.body.splitlines()
    assert lines[0] == "Account 2378 was debited."
    assert "Payment:      . first" in lines
    assert "Reference:    für Zoë  Bcc: other@example.org  .  MAIL FROM:<x@example.org>   end" in lines


async def test_a_mail_whose_deadline_has_passed_is_not_handed_over(
    mailbox: Mailbox, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_s, late_s = 0.0, 1000.0
    # The process was stopped after the server's 354, and has not noticed the timeout yet
    clock = iter([begun_s, late_s])
    monkeypatch.setattr(smtp, "monotonic_s", lambda: next(clock))
    outcome = await sink.deliver(effect(1, TO))
    assert isinstance(outcome, Retriable)
    assert "has passed" in outcome.detail
    assert mailbox.mails() == []


@pytest.mark.parametrize(
    ("at", "code", "kind"),
    [
        (Stage.RCPT, 450, Retriable),
        (Stage.RCPT, 550, Refused),
        (Stage.RCPT, 530, Retriable),  # concerns the sender's credentials, not this mail
        (Stage.RCPT, 421, Retriable),
        (Stage.DATA, 451, Retriable),
        (Stage.DATA, 554, Refused),
        (Stage.DATA, 421, Retriable),
        (Stage.DATA, 250, Retriable),  # makes no sense there, and nothing was handed over
        (Stage.MESSAGE, 451, Retriable),
        (Stage.MESSAGE, 554, Refused),
        (Stage.MESSAGE, 421, Retriable),
        (Stage.MESSAGE, 299, Delivered),
        (Stage.MESSAGE, 399, Unknown),  # makes no sense there
    ],
)
async def test_each_answer_has_its_outcome(
    mailbox: Mailbox, sink: Sink, at: Stage, code: int, kind: type[Outcome]
) -> None:
    mailbox.fail(MailFaults(at, Action.ANSWER, code=code))
    outcome = await sink.deliver(effect(1, TO))
    assert isinstance(outcome, kind)
    assert str(code) in outcome.detail
    mailbox.fail(MailFaults())
    assert isinstance(await sink.deliver(effect(2, TO)), Delivered)
    assert [mail.message_id[:33] for mail in mailbox.mails()] == [f"<{effect(2, TO).effect_id}"]
    assert mailbox.connections == (2 if code in {250, 399, 421} else 1)


async def test_a_lost_connection_is_a_doubt_only_after_the_message(mailbox: Mailbox, sink: Sink) -> None:
    for stage in (Stage.RCPT, Stage.DATA):
        mailbox.fail(MailFaults(stage, Action.DROP, times=1))
        assert isinstance(await sink.deliver(effect(1, TO)), Retriable)
    mailbox.fail(MailFaults(Stage.MESSAGE, Action.DROP, times=1))
    assert isinstance(await sink.deliver(effect(1, TO)), Unknown)
    assert mailbox.mails() == []
    mailbox.fail(MailFaults(Stage.ACCEPTED, Action.DROP, times=1))
    assert isinstance(await sink.deliver(effect(1, TO)), Unknown)
    assert len(mailbox.mails()) == 1


async def test_a_timeout_is_a_doubt_only_after_the_message(mailbox: Mailbox) -> None:
    for stage, kind in ((Stage.RCPT, Retriable), (Stage.DATA, Retriable), (Stage.MESSAGE, Unknown)):
        mailbox.fail(MailFaults(stage, Action.WAIT, delay_s=2 * CALL_S))
        started_s = time.monotonic()
        assert isinstance(await call(mailbox, OUTBOX_CALL_TIMEOUT_S=str(CALL_S)), kind)
        assert time.monotonic() - started_s < 2 * CALL_S
    assert mailbox.mails() == []


async def test_a_connection_is_kept_after_a_refusal(mailbox: Mailbox, sink: Sink) -> None:
    for number in range(3):
        assert isinstance(await sink.deliver(effect(number, TO)), Delivered)
    for stage in (Stage.RCPT, Stage.MESSAGE):
        mailbox.fail(MailFaults(stage, Action.ANSWER, code=550, times=1))
        assert isinstance(await sink.deliver(effect(3, TO)), Refused)
    assert isinstance(await sink.deliver(effect(4, TO)), Delivered)
    assert mailbox.connections == 1


async def test_a_kept_connection_that_is_dead_is_replaced(tmp_path: Path) -> None:
    async with Mailbox(tmp_path, USER, PASSWORD) as first:
        sink = email(first)
        assert isinstance(await sink.deliver(effect(1, TO)), Delivered)
    async with Mailbox(tmp_path, USER, PASSWORD, first.port) as second, sink:
        assert isinstance(await sink.deliver(effect(2, TO)), Delivered)
        second.fail(MailFaults(Stage.RCPT, Action.DROP, times=1))
        assert isinstance(await sink.deliver(effect(3, TO)), Delivered)
        second.fail(MailFaults(Stage.RCPT, Action.ANSWER, code=421, times=1))
        assert isinstance(await sink.deliver(effect(4, TO)), Delivered)
        assert (second.connections, len(second.mails())) == (3, 4)


async def test_connections_are_bounded(mailbox: Mailbox, sink: Sink) -> None:
    mailbox.fail(MailFaults(Stage.ACCEPTED, Action.WAIT, delay_s=0.1))
    calls = [sink.deliver(effect(number, TO)) for number in range(4 * SMTP_CONNECTIONS_MAX)]
    assert {type(outcome) for outcome in await asyncio.gather(*calls)} == {Delivered}
    assert mailbox.connections == SMTP_CONNECTIONS_MAX


async def test_a_mail_that_waits_too_long_for_a_connection_is_retriable(mailbox: Mailbox) -> None:
    async with email(mailbox, OUTBOX_CALLS_MAX="1", OUTBOX_CALL_TIMEOUT_S=str(CALL_S)) as sink:
        mailbox.fail(MailFaults(Stage.ACCEPTED, Action.WAIT, delay_s=3 * CALL_S))
        outcomes = await asyncio.gather(*(sink.deliver(effect(number, TO)) for number in range(2)))
    assert [type(outcome) for outcome in outcomes] == [Unknown, Retriable]
    assert outcomes[1].detail.startswith("no connection became free")


async def test_an_unused_connection_is_closed(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "IDLE_S", 0.05)
    async with email(mailbox) as sink:
        assert isinstance(await sink.deliver(effect(1, TO)), Delivered)

        async def closed() -> bool:
            return mailbox.open_connections == 0

        assert mailbox.open_connections == 1
        await eventually(closed, "the connection is closed")
        assert isinstance(await sink.deliver(effect(2, TO)), Delivered)
    assert mailbox.connections == 2


async def test_a_sink_that_is_closed_closes_its_connections(mailbox: Mailbox) -> None:
    async with email(mailbox) as sink:
        assert isinstance(await sink.deliver(effect(1, TO)), Delivered)
        assert mailbox.open_connections == 1

    async def closed() -> bool:
        return mailbox.open_connections == 0

    await eventually(closed, "the connection is closed", smtp.IDLE_S / 2)


async def test_a_call_that_is_cancelled_leaves_no_connection_half_used(mailbox: Mailbox, sink: Sink) -> None:
    mailbox.fail(MailFaults(Stage.ACCEPTED, Action.WAIT, delay_s=60.0))
    task = asyncio.create_task(_deliver(sink, effect(1, TO)))

    async def accepted() -> bool:
        return len(mailbox.mails()) == 1

    await eventually(accepted, "the mail has arrived")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    mailbox.fail(MailFaults())
    assert isinstance(await sink.deliver(effect(2, TO)), Delivered)
    assert mailbox.connections == 2


async def _deliver(sink: Sink, request: EffectRequest) -> Outcome:
    return await sink.deliver(request)


async def test_wrong_credentials_name_the_setting_to_correct(mailbox: Mailbox) -> None:
    outcome = await call(mailbox, SMTP_USER="somebody else")
    assert isinstance(outcome, Retriable)
    assert "correct ONCE_SMTP_USER" in outcome.detail
    assert PASSWORD not in outcome.detail
    assert mailbox.mails() == []


async def test_an_untrusted_server_gets_no_mail(mailbox: Mailbox, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    outcome = await call(mailbox, SMTP_CA_FILE=str(other))
    assert isinstance(outcome, Retriable)
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.detail
    assert mailbox.mails() == []


async def test_a_server_without_starttls_gets_mail_only_if_allowed(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca_file))
    async with Mailbox(tmp_path, tls=False) as clear:
        given = {"SMTP_HOST": LOOPBACK, "SMTP_PORT": str(clear.port), "SMTP_SENDER": "ledger@example.org"}
        strict = open_sinks(settings(tmp_path, SMTP_CA_FILE=str(ca_file), **given), time.time)[Channel.EMAIL]
        async with strict:
            outcome = await strict.deliver(effect(1, TO))
        assert isinstance(outcome, Retriable)
        assert "STARTTLS" in outcome.detail
        assert clear.mails() == []
        loose = open_sinks(settings(tmp_path, SMTP_STARTTLS="false", **given), time.time)[Channel.EMAIL]
        async with loose:
            assert isinstance(await loose.deliver(effect(1, TO)), Delivered)
        assert [(mail.tls, mail.user) for mail in clear.mails()] == [(False, "")]


async def test_a_name_beyond_ascii_needs_a_server_that_offers_smtputf8(tmp_path: Path) -> None:
    to = "mailto:zoë@müller.example"
    async with Mailbox(tmp_path, USER, PASSWORD, smtputf8=True) as able, email(able) as sink:
        assert isinstance(await sink.deliver(effect(1, to, reference="für Zoë")), Delivered)
        assert isinstance(await sink.deliver(effect(2, TO)), Delivered)
        first, second = able.mails()
    assert (first.recipients, second.recipients) == (["zoë@xn--mller-kva.example"], ["somebody@example.org"])
    assert first.message_id == f"<{effect(1, to).effect_id}@example.org>"
    assert "Reference:    für Zoë" in first.body.splitlines()


async def test_a_name_beyond_ascii_is_refused_by_a_server_without_smtputf8(mailbox: Mailbox, sink: Sink) -> None:
    outcome = await sink.deliver(effect(1, "mailto:zoë@müller.example"))
    assert isinstance(outcome, Refused)
    assert "does not offer SMTPUTF8, which the address at xn--mller-kva.example needs" in outcome.detail
    assert isinstance(await sink.deliver(effect(2, "mailto:zoe@müller.example")), Delivered)
    assert [mail.recipients for mail in mailbox.mails()] == [["zoe@xn--mller-kva.example"]]
    assert mailbox.connections == 1  # the refusal left it as it was


@pytest.mark.parametrize("destination", ["mailto:zoe@exa_mple.örg", "mailto:a@b@c", "mailto:", "https://h/"])
async def test_an_invalid_address_is_refused(sink: Sink, destination: str) -> None:
    assert isinstance(await sink.deliver(effect(1, destination)), Refused)


def test_a_mailbox_process_and_the_services_loop(tmp_path: Path) -> None:
    async def deliver(port: int, ca_file: Path, password_file: Path) -> list[type[Outcome]]:
        given = settings(
            tmp_path,
            SMTP_HOST=LOOPBACK,
            SMTP_PORT=str(port),
            SMTP_SENDER="ledger@example.org",
            SMTP_CA_FILE=str(ca_file),
            SMTP_USER=USER,
            SMTP_PASSWORD_FILE=str(password_file),
        )
        async with open_sinks(given, time.time)[Channel.EMAIL] as sink:
            return [type(await sink.deliver(effect(number, TO))) for number in range(2)]

    with MailboxProcess(tmp_path / "mailbox", USER, PASSWORD) as process:
        process.fail(MailFaults(Stage.ACCEPTED, Action.DROP, times=1))
        outcomes = uvloop.run(deliver(process.port, process.ca_file, process.password_file))
        assert outcomes == [Unknown, Delivered]
        process.kill()
        assert uvloop.run(deliver(process.port, process.ca_file, process.password_file)) == [Retriable, Retriable]
        process.start()
        assert uvloop.run(deliver(process.port, process.ca_file, process.password_file)) == [Unknown, Delivered]
    assert len(process.mails()) == 4
