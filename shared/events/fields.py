"""The rules for each field of a payment, by schema version, and the messages for violations. Pure.

This is the slow and exact half of validation, for reversals, for openings of accounts, and for records that are refused
or of an older version.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, lru_cache, partial

from shared.events.clients import is_client
from shared.events.dead_letters import Reason
from shared.events.partitions import SHARD_PATTERN, shards_text
from shared.events.payments import MAX_AMOUNT_MINOR, MAX_PAYMENT_ID_CHARS, MAX_REFERENCE_CHARS
from shared.events.reference import MINOR_DIGITS

Fault = tuple[Reason, str]
Check = Callable[[str, object], Fault | None]

HOUSE_ACCOUNTS = ("cash", "clearing", "interest", "fees", "insurance", "loans", "other")
"""House accounts that a payment may name, as `<name>@<partition>`; the others belong to the ledger alone."""

_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLIENT_ACCOUNT_TEXT = "1 to 64 letters, digits, '.', '_' or '-'"
_ACCOUNT = re.compile(rf"{_CLIENT.pattern}|(?:{'|'.join(HOUSE_ACCOUNTS)})@({SHARD_PATTERN})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP_MAX_CHARS = 40
_OFFSET_DIGITS_MAX = 18  # fits a signed 64-bit offset


def is_client_account(text: str) -> bool:
    """Whether a payment may name this account as a client's."""
    return _CLIENT.fullmatch(text) is not None


def is_account(text: str, partitions: int) -> bool:
    """Whether a payment may name this account: a client's, or one of HOUSE_ACCOUNTS with its partition."""
    found = _ACCOUNT.fullmatch(text)
    return found is not None and (found[1] is None or int(found[1]) < partitions)


def account_text(partitions: int) -> str:
    """Describe the accounts that a payment may name, for messages and documents."""
    return f"{_CLIENT_ACCOUNT_TEXT}, or a house account: {', '.join(HOUSE_ACCOUNTS)} with {shards_text(partitions)}"


@lru_cache(maxsize=4096)
def is_date(text: str) -> bool:
    """Whether the text is a real date in the form YYYY-MM-DD, and in no other form of ISO 8601."""
    if _DATE.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_number(text: str) -> bool:
    """Whether the text is a number in ASCII digits, as of a partition or an offset."""
    return text.isascii() and text.isdecimal() and len(text) <= _OFFSET_DIGITS_MAX


def shown(value: object) -> str:
    """Show a value in a message: ASCII, one line, short."""
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'array'}"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _payment_id(name: str, value: object) -> Fault | None:
    if isinstance(value, str) and 1 <= len(value) <= MAX_PAYMENT_ID_CHARS and value.isprintable():
        return None
    wanted = f"send a string of 1 to {MAX_PAYMENT_ID_CHARS} printable characters"
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: {wanted}"


def _account(partitions: int, name: str, value: object) -> Fault | None:
    if not isinstance(value, str):
        return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send the account as a string"
    if is_account(value, partitions):
        return None
    return Reason.ACCOUNT_INVALID, f"{name} is {shown(value)}: send {account_text(partitions)}"


def _client_account(name: str, value: object) -> Fault | None:
    if not isinstance(value, str):
        return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send the account as a string"
    if is_client_account(value):
        return None
    return Reason.ACCOUNT_INVALID, f"{name} is {shown(value)}: send {_CLIENT_ACCOUNT_TEXT}, not a house account"


def _owner_or_null(name: str, value: object) -> Fault | None:
    if value is None or (isinstance(value, str) and is_client(value)):
        return None
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send the name of a client, {_CLIENT_ACCOUNT_TEXT}"


def _count_or_null(name: str, value: object) -> Fault | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_AMOUNT_MINOR):
        return None
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send an integer from 0 to {MAX_AMOUNT_MINOR}, or null"


def _amount(name: str, value: object) -> Fault | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return Reason.AMOUNT_NOT_INTEGER, f"{name} is {shown(value)}: send an integer number of minor units"
    if value < 1:
        return Reason.AMOUNT_NOT_POSITIVE, f"{name} is {shown(value)}: send a positive integer number of minor units"
    if value > MAX_AMOUNT_MINOR:
        return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send at most {MAX_AMOUNT_MINOR}"
    return None


def _currency(name: str, value: object) -> Fault | None:
    if not isinstance(value, str):
        return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send an ISO 4217 code as a string"
    if value in MINOR_DIGITS:
        return None
    return Reason.CURRENCY_UNKNOWN, f"{name} is {shown(value)}: send an active ISO 4217 code, such as EUR"


def _currency_or_null(name: str, value: object) -> Fault | None:
    return None if value is None else _currency(name, value)


def _date_or_null(name: str, value: object) -> Fault | None:
    if value is None or (isinstance(value, str) and is_date(value)):
        return None
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send a date that exists as YYYY-MM-DD"


def _timestamp_or_null(name: str, value: object) -> Fault | None:
    if value is None or (isinstance(value, str) and _is_timestamp(value)):
        return None
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send a timestamp such as 1993-01-01T12:00:00Z"


def _is_timestamp(text: str) -> bool:
    if len(text) > _TIMESTAMP_MAX_CHARS or text[10:11] not in {"T", " "} or not is_date(text[:10]):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _reference(name: str, value: object) -> Fault | None:
    if isinstance(value, str) and len(value) <= MAX_REFERENCE_CHARS:
        return None
    return Reason.FIELD_INVALID, f"{name} is {shown(value)}: send a string of at most {MAX_REFERENCE_CHARS} characters"


def _given(name: str, value: object) -> Fault | None:
    """Accept schema_version and type, which were read before the shape was known."""
    del name, value
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of one type in one schema version, with a check for each."""

    name: str  # for messages
    required: Mapping[str, Check]
    optional: Mapping[str, Check]
    accounts: tuple[str, ...] = ()  # the fields of the two accounts, which must differ

    def fault(self, fields: Mapping[str, object]) -> Fault | None:
        """Return the first violation, or None."""
        for name in fields:
            if name not in self.required and name not in self.optional:
                known = ", ".join((*self.required, *self.optional))
                return Reason.FIELD_UNKNOWN, f"{shown(name)} is not a field of a {self.name}; its fields are {known}"
        for name in self.required:
            if name not in fields:
                return Reason.FIELD_MISSING, f"{name} is missing: a {self.name} needs {', '.join(self.required)}"
        for name, value in fields.items():
            fault = (self.required.get(name) or self.optional[name])(name, value)
            if fault is not None:
                return fault
        if len({fields[name] for name in self.accounts}) < len(self.accounts):
            return Reason.SAME_ACCOUNT, f"{' and '.join(self.accounts)} are the same: send two different accounts"
        return None


@cache
def shapes(partitions: int) -> Mapping[tuple[int, str], Shape]:
    """Return the fields by schema version and type. Version 1 had payments only, and no type field."""
    account = partial(_account, partitions)
    return {
        (1, "payment"): Shape(
            "payment of schema version 1",
            {
                "schema_version": _given,
                "payment_id": _payment_id,
                "account_from": account,
                "account_to": account,
                "amount_minor": _amount,
                "currency": _currency,
            },
            {"occurred_at": _timestamp_or_null, "memo": _reference},
            ("account_from", "account_to"),
        ),
        (2, "payment"): Shape(
            "payment",
            {
                "schema_version": _given,
                "payment_id": _payment_id,
                "debtor": account,
                "creditor": account,
                "amount_minor": _amount,
                "currency": _currency,
            },
            {
                "type": _given,
                "credit_currency": _currency_or_null,
                "value_date": _date_or_null,
                "reference": _reference,
            },
            ("debtor", "creditor"),
        ),
        (2, "reversal"): Shape(
            "reversal",
            {
                "schema_version": _given,
                "type": _given,
                "payment_id": _payment_id,
                "debtor": account,
                "reverses": _payment_id,
            },
            {"value_date": _date_or_null, "reference": _reference},
        ),
        (2, "account_opening"): Shape(
            "account_opening",
            {"schema_version": _given, "type": _given, "payment_id": _payment_id, "debtor": _client_account},
            {"overdraft_minor": _count_or_null, "expected_version": _count_or_null, "owner": _owner_or_null},
        ),
    }
