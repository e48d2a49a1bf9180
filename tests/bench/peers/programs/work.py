"""The work of one hop, the same for each Python program: decode, validate, add a fee, encode.

A program reads its job from the environment. It prints one line `FIRST <unix seconds>` at its first record, and
ends on SIGTERM.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

CURRENCIES = frozenset(("EUR", "USD", "GBP", "CHF", "JPY"))


class Job(NamedTuple):
    """What a program does."""

    bootstrap_servers: str
    source: str  # the input topic
    sink: str  # for valid records
    dead_letters: str  # for the others
    group: str  # the consumer group, and the beginning of the transactional.id
    open_s: float  # how long a transaction stays open


class Payment(msgspec.Struct):
    """A record of the input; of the output, with `fee` and `processed`."""

    event_id: str
    account_from: str
    account_to: str
    amount_minor: int
    currency: str
    occurred_at: str
    schema_version: int
    memo: str
    fee: int = 0
    processed: bool = False


decode: Callable[[bytes], Payment] = msgspec.json.Decoder(Payment).decode
encode: Callable[[object], bytes] = msgspec.json.Encoder().encode


def job() -> Job:
    """Read the job from the environment; KeyError where a variable is missing."""
    of = os.environ
    return Job(of["BOOTSTRAP"], of["IN"], of["OUT"], of["DLQ"], of["GROUP"], int(of["COMMIT_MS"]) / 1000)


def handle(value: bytes) -> tuple[bytes, bytes] | None:
    """Return key and value of a valid record's output; None for a record that goes to the dead letters."""
    payment = decode(value)
    if (
        payment.amount_minor <= 0
        or not payment.account_from
        or not payment.account_to
        or payment.currency not in CURRENCIES
    ):
        return None
    payment.fee = payment.amount_minor * 29 // 10000 + 30
    payment.processed = True
    return payment.account_from.encode(), encode(payment)


def report_first() -> None:
    """Report that the first record was read."""
    print(f"FIRST {time.time():.6f}", file=sys.__stdout__, flush=True)
