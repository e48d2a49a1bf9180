"""E-mail: an effect as one message to one address, over SMTP.

Invariants:
- A mail server knows no keys, so the same message sent twice is two mails. Only what was certainly not accepted is
  Retriable; a message without an answer is Unknown, and is never sent again from here.
- The Message-ID is the effect's own, so a store of mails can recognise one that was sent twice.
- A subject has only what the ledger wrote: amounts, codes, account names. What a customer wrote is in the body, each on
  one line of its own, so that it cannot pass for a line of the ledger, and cannot make a header. Lines end in CRLF, and
  are ASCII unless the recipient's name is not.
- Amounts are exact: no float touches them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import idna

from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown, printable
from services.outbox.sinks.smtp import (
    AddressUnsupportedError,
    AnswerLostError,
    Connections,
    NoConnectionError,
    NotTakenError,
    Server,
)
from shared.events.effects import Channel, EffectKind, EffectRequest, channel_of
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import DeclineReason

_REASONS: dict[str, str] = {
    DeclineReason.INSUFFICIENT_FUNDS: "the account's funds do not cover it",
    DeclineReason.DEBTOR_CLOSED: "the account to be debited is closed",
    DeclineReason.NO_RATE: "there is no rate for this conversion",
    DeclineReason.AMOUNT_VANISHES: "converted, the amount rounds to nothing",
    DeclineReason.AMOUNT_TOO_LARGE: "converted or with its fee, the amount is too large",
    DeclineReason.ORIGINAL_NOT_FOUND: "the payment to be reversed is not known, or can no longer be reversed",
    DeclineReason.ALREADY_REVERSED: "the payment has been reversed before",
    DeclineReason.NOT_AUTHORISED: "the client that ordered it may not use this account",
    DeclineReason.STALE_VERSION: "the account was changed after the order was made",
}


class Text(NamedTuple):
    """A mail's subject, one line, and its body, with line feeds."""

    subject: str
    body: str


def compose(request: EffectRequest) -> Text:
    """The text for an effect. A kind without words of its own is reported as an event."""
    return _TEMPLATES.get(request.kind, _event)(request)


def amount(amount_minor: int, currency: str) -> str:
    """An amount in major units, `12.50 EUR`, `1250 JPY`, `-0.005 BHD`; minor units of an unknown currency."""
    digits = MINOR_DIGITS.get(currency)
    if digits is None:
        return f"{amount_minor} minor units of {currency}"
    sign = "-" if amount_minor < 0 else ""
    major, minor = divmod(abs(amount_minor), 10**digits)
    return f"{sign}{major}.{minor:0{digits}d} {currency}" if digits else f"{sign}{major} {currency}"


def one_line(text: str) -> str:
    """The text with a space for each character that cannot be printed: line ends, controls, direction marks."""
    return "".join(char if char.isprintable() else " " for char in text)


def _moved(what: str, request: EffectRequest) -> Text:
    """For a balance that changed. The sign says which way, because a reversal turns the payment round."""
    gained = (request.amount_minor or 0) > 0
    title = "Reversal" if request.reversal else what
    moved = "credited to" if gained else "debited from"
    subject = f"{title}: {_changed(request).removeprefix('-')} {moved} account {request.account}"
    return _text(subject, f"Account {request.account} was {'credited' if gained else 'debited'}.", request)


def _decline_notice(request: EffectRequest) -> Text:
    what = "Reversal" if request.reversal else "Payment"
    subject = f"{what} declined: account {request.account}"
    return _text(subject, f"A {what.lower()} was declined. The balance has not changed.", request)


def _event(request: EffectRequest) -> Text:
    subject = f"Event: {request.event} on account {request.account}"
    return _text(subject, f"The ledger recorded a {request.event} on account {request.account}.", request)


_TEMPLATES: dict[str, Callable[[EffectRequest], Text]] = {
    EffectKind.RECEIPT: partial(_moved, "Receipt"),
    EffectKind.NOTICE: partial(_moved, "Notice"),
    EffectKind.DECLINE_NOTICE: _decline_notice,
    EffectKind.EVENT: _event,
}


def _text(subject: str, opening: str, request: EffectRequest) -> Text:
    details = [
        ("Change", _changed(request)),
        ("Of this, fee", _fee(request)),
        ("Reason", _REASONS.get(request.reason, request.reason) if request.reason else ""),
        ("Value date", request.value_date),
        ("From", request.debtor),
        ("To", request.creditor),
        ("Payment", request.payment_id),
        ("Reference", request.reference),
        ("Effect", request.effect_id),
    ]
    width = max(len(name) for name, _ in details) + 1
    lines = [f"{name + ':':<{width}} {one_line(value)}" for name, value in details if value]
    return Text(one_line(subject), "\n".join([opening, "", *lines, ""]))


def _changed(request: EffectRequest) -> str:
    if request.amount_minor is None or request.currency is None:
        return ""
    return amount(request.amount_minor, request.currency)


def _fee(request: EffectRequest) -> str:
    return amount(request.fee_minor, request.currency) if request.fee_minor and request.currency else ""


_DOT = re.compile(rb"(?m)^\.")


def recipient_of(destination: str) -> str:
    """The address of a destination `mailto:somebody@example.org`, its domain in ASCII (RFC 5891).

    Raises ValueError if it is no such destination, or its domain cannot be one.
    """
    if channel_of(destination) is not Channel.EMAIL:
        raise ValueError("the destination is no mail address")
    name, _, domain = destination.removeprefix("mailto:").rpartition("@")
    if domain.isascii():
        return f"{name}@{domain}"
    try:
        return f"{name}@{idna.encode(domain, uts46=True).decode()}"
    except idna.IDNAError as error:
        raise ValueError(f"{domain} can be no domain: {error}") from error


def message_id(effect_id: str, sender: str) -> str:
    """`<effect_id@domain of the sender>` (RFC 5322, section 3.6.4)."""
    return f"<{effect_id}@{sender.rpartition('@')[2]}>"


def encode_message(request: EffectRequest, sender: str, recipient: str, now_s: float) -> bytes:
    """Encode the mail: plain text, UTF-8 as quoted-printable, marked as sent by no person (RFC 3834), dated `now_s`.

    A recipient beyond ASCII is in the header as UTF-8 (RFC 6532), which only SMTPUTF8 carries.
    """
    text = compose(request)
    message = EmailMessage(policy=SMTP if recipient.isascii() else SMTPUTF8)
    message["Message-ID"] = message_id(request.effect_id, sender)
    message["Date"] = format_datetime(datetime.fromtimestamp(int(now_s), UTC))
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = text.subject
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text.body, subtype="plain", charset="utf-8", cte="quoted-printable")
    return message.as_bytes()


def encode_data(message: bytes) -> bytes:
    """The message, in lines that end with CRLF, as it follows DATA: dots doubled, one at the end (RFC 5321, 4.5.2)."""
    return _DOT.sub(b"..", message) + b".\r\n"


# Answers about the sender's credentials and no mail (RFC 4954, section 6), for an operator to correct
_CREDENTIALS = frozenset({530, 534, 535, 538})


class EmailSink:
    """Sends mails over a bounded pool of connections.

    Args:
        timeout_s: seconds that one call may take: half of them until the message is handed over, half for its answer,
            since a message that is not answered in time costs a person's attention.
        clock: seconds since 1970 UTC.
    """

    takes_keys = False

    def __init__(
        self, server: Server, sender: str, timeout_s: float, connections_max: int, clock: Callable[[], float]
    ) -> None:
        self.calls_max = connections_max
        self._server = server
        self._sender = sender
        self._clock = clock
        self._connections = Connections(server, connections_max, timeout_s / 2, timeout_s / 2)

    async def deliver(self, request: EffectRequest) -> Outcome:
        try:
            recipient = recipient_of(request.destination)
        except ValueError as error:
            return Refused(str(error))
        data = encode_data(encode_message(request, self._sender, recipient, self._clock()))
        try:
            answer = await self._connections.send(self._sender, recipient, data)
        except AddressUnsupportedError as error:
            return Refused(str(error))
        except NotTakenError as refusal:
            detail = printable(str(refusal))
            permanent = refusal.code >= 500 and refusal.code not in _CREDENTIALS
            return Refused(detail) if permanent else Retriable(detail)
        except NoConnectionError as error:
            return Retriable(printable(str(error)))
        except AnswerLostError as error:
            return Unknown(printable(str(error)))
        return Delivered(printable(answer))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connections.close()
