"""The view's tables in memory, and its topic, for tests without a database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.balances.projection.domain import Page, Plan, Position, State, fold
from services.balances.projection.rows import Balance, Row, Terms, Total
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import Headers
from shared.events.postings import LedgerEvent, encode_ledger_event
from tests.partitions import PARTITIONS

ORIGIN: Headers = (("origin", b"payments.raw:2:7"), ("origin-time", b"1000"))

Tables = dict[str, dict[tuple[object, ...], dict[str, Any]]]

_KEYS = {
    "accounts": ("account",),
    "balances": ("account", "currency"),
    "totals": ("partition", "holder", "currency"),
    "events": ("partition", "offset"),
    "entries": ("partition", "offset", "line"),
}


def made_from(partition: int, offset: int) -> Headers:
    """The headers of a record made from this record of ledger.transfers."""
    return (*ORIGIN, ("source", b"ledger.transfers:%d:%d" % (partition, offset)))


def record(partition: int, offset: int, event: LedgerEvent | bytes, headers: Headers | None = None) -> Record:
    """A record of ledger.postings; its time grows with its offset, and so does its source without given headers."""
    value = event if isinstance(event, bytes) else encode_ledger_event(event)
    if headers is None:
        headers = made_from(partition, offset)
    return Record(LEDGER_POSTINGS, partition, offset, 1_700_000_000_000 + offset, None, value, headers)


def page(partition: int, start: int, next_offset: int, *records: Record) -> Page:
    """A page of these records."""
    return Page(partition, start, next_offset, records)


def topic(events: Iterable[tuple[int, LedgerEvent]], gap: int = 1) -> list[list[Record]]:
    """Each partition's records; `gap` offsets after each have no record, as for a marker."""
    logs: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    for partition, event in events:
        log = logs[partition]
        log.append(record(partition, len(log) * (gap + 1), event))
    return logs


def whole(log: Sequence[Record], partition: int, gap: int = 1) -> Page:
    """All of a partition in one page."""
    return Page(partition, 0, log[-1].offset + gap + 1 if log else 0, log)


@dataclass
class MemoryTables:
    """Tables of a database; a repeated row is an error, as in a database."""

    tables: Tables = field(default_factory=lambda: {name: {} for name in _KEYS})
    positions: dict[int, Position] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), Position(0, 0)))

    def write(self, made: Plan) -> None:
        """Apply a plan."""
        for partition, move in made.moves.items():
            assert self.positions[partition] == move.before
            self.positions[partition] = move.after
        rows = fold(made, self.state(made), PARTITIONS)
        for name, values in (("events", rows.events), ("entries", rows.entries)):
            for row in values:
                assert self.tables[name].setdefault(_key(name, row), row) is row
        for name, values in (("balances", rows.balances), ("totals", rows.totals), ("accounts", rows.accounts)):
            self.tables[name].update((_key(name, row), row) for row in values)
        for row in rows.newcomers:
            self.tables["accounts"].setdefault(_key("accounts", row), row)

    def state(self, made: Plan) -> State:
        """Only the rows that a plan touches."""
        balances, totals, accounts = (self.tables[name] for name in ("balances", "totals", "accounts"))
        return State(
            {
                (account, currency): Balance(*_values(balances[account, currency], Balance))
                for account, currency in made.touched
                if (account, currency) in balances
            },
            {
                (row["partition"], row["holder"], row["currency"]): Total(*_values(row, Total))
                for row in totals.values()
                if row["partition"] in made.moves
            },
            {
                account: Terms(*(accounts[account,][name] for name in Terms._fields))
                for account in made.terms
                if (account,) in accounts
            },
        )

    def balances(self) -> dict[tuple[str, str], int]:
        """All balances but zeros."""
        rows = self.tables["balances"].values()
        return {(row["account"], row["currency"]): row["balance_minor"] for row in rows if row["balance_minor"]}


def _key(table: str, row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEYS[table])


def _values(row: dict[str, Any], kind: type[Any]) -> list[Any]:
    return [row[name] for name in kind.__slots__]
