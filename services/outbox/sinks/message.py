"""One e-mail as bytes, ready for SMTP's DATA. Pure: the time comes in as an argument.

What holds: the Message-ID is the effect's own, so a mail sent twice can be told by whoever stores it; every line is
ASCII and ends in CRLF, and no header can be made by what a customer wrote.
"""

import re
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from services.outbox.sinks.templates import compose
from shared.events.effects import Channel, EffectRequest, channel_of

_DOT = re.compile(rb"(?m)^\.")


def recipient_of(destination: str) -> str:
    """The address of a destination `mailto:somebody@example.org`.

    Raises:
        ValueError: it is no such destination, or not ASCII: the addresses of RFC 6531 are not supported.
    """
    if channel_of(destination) is not Channel.EMAIL:
        raise ValueError("the destination is no mail address")
    address = destination.removeprefix("mailto:")
    if not address.isascii():
        raise ValueError("the address has characters beyond ASCII: give its domain as xn--... and its name in ASCII")
    return address


def message_id(effect_id: str, sender: str) -> str:
    """`<effect_id@domain of the sender>` (RFC 5322, section 3.6.4)."""
    return f"<{effect_id}@{sender.rpartition('@')[2]}>"


def encode_message(request: EffectRequest, sender: str, recipient: str, now_s: float) -> bytes:
    """The mail of an effect: plain text, UTF-8 as quoted-printable, marked as no person's (RFC 3834).

    Args:
        request: the effect.
        sender, recipient: addresses.
        now_s: for the Date header, seconds since 1970 UTC.
    """
    text = compose(request)
    message = EmailMessage(policy=SMTP)
    message["Message-ID"] = message_id(request.effect_id, sender)
    message["Date"] = format_datetime(datetime.fromtimestamp(int(now_s), UTC))
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = text.subject
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text.body, subtype="plain", charset="utf-8", cte="quoted-printable")
    return message.as_bytes()


def encode_data(message: bytes) -> bytes:
    """A message as it follows DATA: dots doubled, ended by a line with one dot (RFC 5321, section 4.5.2).

    Args:
        message: its lines ended by CRLF, the last one too.
    """
    return _DOT.sub(b"..", message) + b".\r\n"
