"""The PKDD'99 financial data set's transactions as payments. Pure.

One line is one transaction: semicolons, text in double quotes, amounts in crowns with two decimals. Its mapping to a
payment is in deploy/sample/README.md. No float touches an amount.
"""

import re
from datetime import date
from typing import NamedTuple

from shared.events.partitions import partition_for
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction

CURRENCY = "CZK"

COLUMNS = ("trans_id", "account_id", "date", "type", "operation", "amount", "balance", "k_symbol", "bank", "account")

_CREDIT = "PRIJEM"
_TYPES = frozenset({_CREDIT, "VYDAJ", "VYBER"})
_ID = re.compile(r"[0-9]{1,19}")
_DATE = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})")
_CROWNS = re.compile(r"(-?)([0-9]{1,13})(?:\.([0-9]{1,2}))?")

_HOUSE_BY_SYMBOL = {
    "UROK": "interest",
    "SANKC. UROK": "interest",
    "SLUZBY": "fees",
    "POJISTNE": "insurance",
    "UVER": "loans",
}
_HOUSE_BY_OPERATION = {
    "VKLAD": "cash",
    "VYBER": "cash",
    "VYBER KARTOU": "cash",
    "PREVOD Z UCTU": "clearing",
    "PREVOD NA UCET": "clearing",
}


class MalformedLineError(ValueError):
    """A line is not a transaction of this data set."""


class Transaction(NamedTuple):
    """One line.

    Attributes:
        value_date: YYYY-MM-DD.
        amount_minor: hellers, as published, 0 or more; `is_credit` says which way.
        balance_minor: hellers, the bank's own balance afterwards.
    """

    trans_id: str
    account_id: str
    value_date: str
    is_credit: bool
    operation: str
    amount_minor: int
    balance_minor: int
    k_symbol: str
    bank: str
    account: str

    @property
    def day(self) -> int:
        """The value date as a number that orders as dates do, 19930131."""
        return int(self.value_date.replace("-", ""))

    @property
    def change_minor(self) -> int:
        """Change of the client's balance, in hellers."""
        return self.amount_minor if self.is_credit else -self.amount_minor


def is_header(line: bytes) -> bool:
    """Whether a line is the header of such a file, with or without quotes."""
    names = line.strip().replace(b'"', b"").split(b";")
    return tuple(name.decode(errors="replace") for name in names) == COLUMNS


def parse_line(line: bytes) -> Transaction:
    """A line of the file as a transaction; MalformedLineError names the column that cannot be read."""
    try:
        fields = [field.strip().strip('"') for field in line.decode().strip().split(";")]
    except UnicodeDecodeError as error:
        raise MalformedLineError("not UTF-8") from error
    if len(fields) != len(COLUMNS):
        raise MalformedLineError(f"{len(fields)} columns, expected {len(COLUMNS)}")
    trans_id, account_id, day, kind, operation, amount, balance, k_symbol, bank, account = fields
    for name, value in (("trans_id", trans_id), ("account_id", account_id)):
        if _ID.fullmatch(value) is None:
            raise MalformedLineError(f"{name} is {value!r}, expected digits")
    if kind not in _TYPES:
        raise MalformedLineError(f"type is {kind!r}, expected one of {', '.join(sorted(_TYPES))}")
    amount_minor = _minor("amount", amount)
    if amount_minor < 0:
        raise MalformedLineError(f"amount is {amount!r}; the type says which way, not a sign")
    day, balance_minor, symbol = _value_date(day), _minor("balance", balance), k_symbol.strip()
    credit = kind == _CREDIT
    return Transaction(trans_id, account_id, day, credit, operation, amount_minor, balance_minor, symbol, bank, account)


def _value_date(text: str) -> str:
    found = _DATE.fullmatch(text)
    if found is None:
        raise MalformedLineError(f"date is {text!r}, expected YYMMDD")
    year, month, day = found.groups()
    try:
        return date(1900 + int(year), int(month), int(day)).isoformat()
    except ValueError as error:
        raise MalformedLineError(f"date is {text!r}: {error}") from error


def _minor(name: str, text: str) -> int:
    """Crowns with up to two decimals as hellers, exactly."""
    found = _CROWNS.fullmatch(text)
    if found is None:
        raise MalformedLineError(f"{name} is {text!r}, expected crowns with at most two decimals")
    sign, crowns, hellers = found.groups()
    minor = int(crowns) * 100 + int((hellers or "").ljust(2, "0"))
    return -minor if sign else minor


def house_account(transaction: Transaction, partitions: int) -> str:
    """The other side of a transaction: a house account on the client's partition, such as `cash@3`."""
    name = _HOUSE_BY_SYMBOL.get(transaction.k_symbol) or _HOUSE_BY_OPERATION.get(transaction.operation, "other")
    return f"{name}@{partition_for(transaction.account_id, partitions)}"


def payment(transaction: Transaction, partitions: int) -> Payment:
    """The payment that a transaction is: credits go from the house to the client, everything else the other way."""
    house, client = house_account(transaction, partitions), transaction.account_id
    debtor, creditor = (house, client) if transaction.is_credit else (client, house)
    words = (transaction.operation, transaction.k_symbol, transaction.bank, transaction.account)
    return Payment(
        payment_id=transaction.trans_id,
        debtor=debtor,
        creditor=creditor,
        amount_minor=transaction.amount_minor,
        currency=CURRENCY,
        schema_version=SCHEMA_VERSION,
        value_date=transaction.value_date,
        reference=" ".join(word for word in words if word),
    )


def value_of(line: bytes, partitions: int) -> tuple[bytes, bool]:
    """Return the value for payments.raw of a line, and whether it could be mapped.

    A line that cannot be mapped goes in as it is, for ingest to refuse: nothing is dropped on the way.
    """
    try:
        return encode_instruction(payment(parse_line(line), partitions)), True
    except MalformedLineError:
        return line, False
