"""A bank's own last balance of each account, found in its transactions without adding up any amount. Pure.

`balance` is the bank's balance after a transaction, but the lines of one day are not always in the bank's order. The
lines of a day are put in an order in which each follows from the one before: |previous + amount - balance| is at most
TOLERANCE_MINOR, because published amounts are rounded. The end of that chain is the last balance.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

TOLERANCE_MINOR = 11
"""Tolerance between a balance and the one before plus the amount, in hellers."""

ORDERS_MAX = 20_000
"""Partial orders of one day that are looked at before the account counts as undecidable."""

Line = tuple[int, int]
"""(change_minor, balance_minor) of one transaction."""


class Chain(msgspec.Struct, frozen=True):
    """First and last balance of an account's chain, in minor units."""

    opening_minor: int
    closing_minor: int


class Histories:
    """Each account's transactions in file order, 24 bytes each."""

    def __init__(self) -> None:
        self._accounts: dict[str, array[int]] = {}

    def add(self, account: str, day: int, change_minor: int, balance_minor: int) -> None:
        """Add a transaction; `day` is a number that orders as its value date does."""
        self._accounts.setdefault(account, array("q")).extend((day, change_minor, balance_minor))

    def __iter__(self) -> Iterator[str]:
        return iter(self._accounts)

    def days(self, account: str) -> list[list[Line]]:
        flat = self._accounts[account]
        rows = sorted(zip(flat[0::3], range(len(flat) // 3), flat[1::3], flat[2::3], strict=True))
        return [
            [(change, balance) for _, _, change, balance in day] for _, day in groupby(rows, key=lambda row: row[0])
        ]


def follows(previous_minor: int, line: Line) -> bool:
    """Whether a line can come right after that balance."""
    return abs(previous_minor + line[0] - line[1]) <= TOLERANCE_MINOR


def ends_of_day(starts: Iterable[int], lines: list[Line]) -> set[int]:
    """The balances that a day can end at, over every order of its lines in which each follows from the one before.

    Empty where no order does, or where more than ORDERS_MAX partial orders would have to be looked at. `starts` are the
    balances that the day may start from.
    """
    if len(lines) == 1:
        return {lines[0][1] for start in starts if follows(start, lines[0])}
    whole = (1 << len(lines)) - 1
    partial = {(0, start) for start in starts}
    for _ in lines:
        partial = {
            (used | 1 << index, line[1])
            for used, balance in partial
            for index, line in enumerate(lines)
            if not used >> index & 1 and follows(balance, line)
        }
        if len(partial) > ORDERS_MAX:
            return set()
    return {balance for used, balance in partial if used == whole}


def closings(opening_minor: int, days: list[list[Line]]) -> set[int]:
    """The balances that an account can end at if it starts from that one; empty if it cannot have started there."""
    balances = {opening_minor}
    for lines in days:
        balances = ends_of_day(balances, lines)
        if not balances:
            break
    return balances


def chain(days: list[list[Line]], known: Chain | None = None) -> Chain | None:
    """The chain of one account; None where there is none, or more than one.

    It continues a known one of the files before, or starts at 0 as a new account does, or else at the balance before
    some line of its first day.
    """
    if known is not None:
        ends = closings(known.closing_minor, days)
        return Chain(known.opening_minor, ends.pop()) if len(ends) == 1 else None
    ends = closings(0, days)
    if ends:
        return Chain(0, ends.pop()) if len(ends) == 1 else None
    openings = {balance - change for change, balance in days[0]}
    found = {(opening, end) for opening in openings for end in closings(opening, days)}
    return Chain(*found.pop()) if len(found) == 1 else None


def chains(histories: Histories, known: Mapping[str, Chain]) -> Iterator[tuple[str, Chain | None]]:
    """The chain of every account, in the order of their first transactions."""
    for account in histories:
        yield account, chain(histories.days(account), known.get(account))
