"""Histories of append-only registers: what each process did, and what the logs showed. Pure.

A register is a partition. Transactions append values to some of them, each value once in the whole history. Readers
poll with isolation.level=read_committed. Each operation is invoked, and then is `ok`, `fail` (it had no effect) or
`info` (its outcome is unknown; it may still take effect). An operation that was never completed is as one with `info`.
`checker.py` finds the anomalies.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Type(StrEnum):
    """Types of an operation's events."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Function(StrEnum):
    """What processes do."""

    INIT = "init"
    APPEND = "append"
    COMMIT = "commit"
    ABORT = "abort"
    POLL = "poll"


class Value(NamedTuple):
    """A value on a partition; the offset is -1 where it is not known, as it is when the value is appended."""

    partition: int
    value: int
    offset: int = -1


class Event(msgspec.Struct, frozen=True):
    """An operation that is invoked or completed; a process has one operation at a time.

    Attributes:
        at_s: seconds since the history began.
        process: a producer from its `init` on, or a reader from one position on.
        transactional_id: of an `init`.
        transaction: its number, of an `append`, `commit` or `abort`.
        values: appended, or polled.
        error: why it is `fail` or `info`.
    """

    at_s: float
    process: str
    type: Type
    function: Function
    transactional_id: str = ""
    transaction: int = -1
    values: list[Value] = []
    error: str = ""


class Look(msgspec.Struct, frozen=True):
    """A partition's last stable offset and the end of its log, at one moment."""

    at_s: float
    partition: int
    stable: int
    end: int


class History(msgspec.Struct):
    """What processes did, and what the logs showed.

    Attributes:
        log: the values of all partitions, read read_committed when everything was healed and no transaction was open.
        is_complete: whether that was done. A history that was broken off shows no loss.
    """

    events: list[Event] = []
    looks: list[Look] = []
    log: list[Value] = []
    is_complete: bool = False
