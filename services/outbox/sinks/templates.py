"""The words of an e-mail, by kind. Pure; knows neither SMTP nor how a message is put together.

What holds: a subject has only what the ledger itself wrote (amounts, codes, account names); what a customer wrote
stands in the body, on one line each, so that it cannot pass for a line of ours. Amounts are exact: no float touches
them.
"""

from collections.abc import Callable
from typing import NamedTuple

from shared.events.effects import EffectKind, EffectRequest
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
}


class Text(NamedTuple):
    """What a mail says: its subject, one line, and its body, lines ended by a line feed."""

    subject: str
    body: str


def compose(request: EffectRequest) -> Text:
    """The mail of an effect. A kind without words of its own is told as an event."""
    return _TEMPLATES.get(request.kind, _event)(request)


def amount(amount_minor: int, currency: str) -> str:
    """An amount in major units with its currency: `12.50 EUR`, `1250 JPY`, `-0.005 BHD`.

    Args:
        amount_minor: in minor units of `currency`.
        currency: an ISO 4217 code; of one that is not known, the minor units are shown as such.
    """
    digits = MINOR_DIGITS.get(currency)
    if digits is None:
        return f"{amount_minor} minor units of {currency}"
    sign = "-" if amount_minor < 0 else ""
    major, minor = divmod(abs(amount_minor), 10**digits)
    return f"{sign}{major}.{minor:0{digits}d} {currency}" if digits else f"{sign}{major} {currency}"


def one_line(text: str) -> str:
    """The text with a space for each character that cannot be shown: line ends, controls, direction marks."""
    return "".join(char if char.isprintable() else " " for char in text)


def _receipt(request: EffectRequest) -> Text:
    return _moved("Receipt", request)


def _notice(request: EffectRequest) -> Text:
    return _moved("Notice", request)


def _moved(what: str, request: EffectRequest) -> Text:
    """Of a balance that changed: which way says the sign, for a reversal turns the payment round."""
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
    EffectKind.RECEIPT: _receipt,
    EffectKind.NOTICE: _notice,
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
