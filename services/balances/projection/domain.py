"""The changes that records of ledger.postings make to the view's tables. Pure.

There are two steps, so that the database is read only for what changes: `plan` decodes pages of records and names the
rows that they change, `fold` takes these rows as they are and returns them as they will be. Invariant: a record below
its partition's position changes nothing, however often it comes; nor does a record whose source was processed already.
Pages cut in other places give the same rows. A record that cannot be decoded stops everything, because between services
it is a defect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.balances.projection.rows import (
    Balance,
    Row,
    Terms,
    Total,
    balance_row,
    decline_row,
    entry_row,
    holder,
    opened_row,
    posting_row,
    terms_row,
    total_row,
    unopened,
)
from shared.eos.sources import SeenSources, Sources
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.codec import InternalInputError
from shared.events.headers import Coordinates, Headers
from shared.events.partitions import partition_for
from shared.events.postings import Decline, Entry, LedgerEvent, Posting, decode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened

AccountCurrency = tuple[str, str]
TotalKey = tuple[int, str, str]  # partition, holder, currency


class Posted(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Page(NamedTuple):
    """Committed records of one partition, one after the other."""

    partition: int
    start: int  # where it was read from: the records are all those committed from here on
    next_offset: int  # where the next page begins, behind markers and aborted records
    records: Sequence[Posted]


class Position(NamedTuple):
    """How far a partition is in the tables: every committed record below `next_offset`."""

    next_offset: int
    timestamp_ms: int  # of the last record
    sources: SeenSources = SeenSources()  # of its records: the ledger writes at most one record for each


class Move(NamedTuple):
    """A position's change, to be made only if it is still where it was."""

    before: Position
    after: Position


class Read(NamedTuple):
    at: Coordinates
    timestamp_ms: int
    headers: Headers
    event: LedgerEvent


@dataclass(slots=True)
class Plan:
    """The content of a database transaction."""

    reads: list[Read] = field(default_factory=list)  # in order within a partition
    repeats: dict[int, list[Posted]] = field(default_factory=dict)  # ignored: sources processed already
    moves: dict[int, Move] = field(default_factory=dict)  # of each partition that advances
    # Partitions of which a page begins beyond their position: that page was left out, and all that follow it
    gaps: set[int] = field(default_factory=set)
    touched: set[AccountCurrency] = field(default_factory=set)  # balances that change
    terms: set[str] = field(default_factory=set)  # accounts whose terms change


@dataclass(slots=True)
class State:
    """The rows that a plan touches, as they are; missing ones have no row yet. Folding changes it."""

    balances: dict[AccountCurrency, Balance] = field(default_factory=dict)
    totals: dict[TotalKey, Total] = field(default_factory=dict)
    terms: dict[str, Terms] = field(default_factory=dict)


@dataclass(slots=True)
class Rows:
    """The rows to write. Events and entries are new; balances, totals and accounts replace existing ones."""

    events: list[Row] = field(default_factory=list)
    entries: list[Row] = field(default_factory=list)
    balances: list[Row] = field(default_factory=list)
    totals: list[Row] = field(default_factory=list)
    accounts: list[Row] = field(default_factory=list)
    # Accounts with the terms of one that was never opened; only where there is no row yet
    newcomers: list[Row] = field(default_factory=list)


def plan(pages: Iterable[Page], positions: Mapping[int, Position]) -> Plan:
    """Decode what is new in pages, which are in order within each partition.

    Raises InternalInputError, with the coordinates, if a record is not what the ledger writes.
    """
    made = Plan()
    for page in pages:
        partition = page.partition
        before = positions[partition]
        at = made.moves[partition].after if partition in made.moves else before
        if partition in made.gaps or page.start > at.next_offset:
            made.gaps.add(partition)
            continue
        if page.next_offset <= at.next_offset:
            continue
        timestamp_ms = at.timestamp_ms
        sources = Sources(at.sources)
        for record in page.records:
            if record.offset < at.next_offset:
                continue
            if sources.admit(record.headers):
                _read(made, partition, record)
            else:
                made.repeats.setdefault(partition, []).append(record)
            timestamp_ms = record.timestamp_ms
        made.moves[partition] = Move(before, Position(page.next_offset, timestamp_ms, sources.seen()))
    return made


def _read(made: Plan, partition: int, record: Posted) -> None:
    at = Coordinates(LEDGER_POSTINGS, partition, record.offset)
    try:
        event = decode_ledger_event(record.value or b"")
    except ValueError as error:
        raise InternalInputError(f"{at}: {error}") from error
    if isinstance(event, Posting):
        made.touched.update([(entry.account, entry.currency) for entry in event.entries])
    elif isinstance(event, AccountOpened | AccountClosed):
        made.terms.add(event.account)
    made.reads.append(Read(at, record.timestamp_ms, record.headers, event))


def fold(made: Plan, state: State, partitions: int) -> Rows:
    """The rows of a plan; `state` has every row that it touches, and is changed. The topic has so many partitions.

    Raises InternalInputError, with the coordinates, if a record touches an account of another partition.
    """
    folding = _Folding(state, partitions)
    for read in made.reads:
        folding.take(read)
    return folding.rows()


class _Folding:
    def __init__(self, state: State, partitions: int) -> None:
        self._state = state
        self._partitions = partitions
        self._rows = Rows()
        self._balances: dict[AccountCurrency, Balance] = {}  # those that change, likewise below
        self._totals: dict[TotalKey, Total] = {}
        self._terms: dict[str, tuple[int, Terms]] = {}
        self._newcomers: dict[str, int] = {}

    def take(self, read: Read) -> None:
        at, timestamp_ms, headers, event = read
        if isinstance(event, Posting):
            self._rows.events.append(posting_row(at, timestamp_ms, headers, event))
            self._post(at, event)
        elif isinstance(event, Decline):
            self._rows.events.append(decline_row(at, timestamp_ms, headers, event))
        else:
            if isinstance(event, AccountOpened) and event.command_id:
                self._rows.events.append(opened_row(at, timestamp_ms, headers, event))
            self._change_terms(at, event)

    def _post(self, at: Coordinates, posting: Posting) -> None:
        for line, entry in enumerate(posting.entries):
            balance = self._balance(entry, at)
            balance.balance_minor += entry.amount_minor
            if balance.last_offset != at.offset:  # a posting may have two lines of one account
                balance.last_offset = at.offset
                balance.postings += 1
            self._add_up(entry, at.partition)
            self._rows.entries.append(entry_row(at, line, entry, balance.balance_minor, posting.value_date))

    def _balance(self, entry: Entry, at: Coordinates) -> Balance:
        key = entry.account, entry.currency
        balance = self._balances.get(key)
        if balance is None:
            balance = self._state.balances.get(key)
            if balance is None:
                _check_home(entry.account, at, self._partitions)
                self._newcomers[entry.account] = at.partition
                balance = Balance(at.partition)
            self._balances[key] = balance
        if balance.partition != at.partition:
            raise _not_at_home(entry.account, at, balance.partition)
        return balance

    def _add_up(self, entry: Entry, partition: int) -> None:
        key = partition, holder(entry.account), entry.currency
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = self._state.totals.get(key) or Total()
        total.balance_minor += entry.amount_minor
        if entry.amount_minor < 0:
            total.debits_minor -= entry.amount_minor
        else:
            total.credits_minor += entry.amount_minor

    def _change_terms(self, at: Coordinates, event: AccountOpened | AccountClosed) -> None:
        account = event.account
        _check_home(account, at, self._partitions)
        if isinstance(event, AccountOpened):
            terms = Terms(event.overdraft_minor, closed=False, owner=event.owner, version=event.version)
        else:
            _, known = self._terms.get(account) or (0, self._state.terms.get(account) or unopened(account))
            terms = known._replace(closed=True, version=event.version)
        self._terms[account] = at.partition, terms

    def rows(self) -> Rows:
        rows = self._rows
        rows.balances = [balance_row(*key, balance) for key, balance in self._balances.items()]
        rows.totals = [total_row(*key, total) for key, total in self._totals.items()]
        rows.accounts = [terms_row(account, *known) for account, known in self._terms.items()]
        rows.newcomers = [
            terms_row(account, partition, unopened(account))
            for account, partition in self._newcomers.items()
            if account not in self._terms
        ]
        return rows


def _check_home(account: str, at: Coordinates, partitions: int) -> None:
    try:
        home = partition_for(account, partitions)
    except ValueError as error:
        raise InternalInputError(f"{at}: {error}") from error
    if home != at.partition:
        raise _not_at_home(account, at, home)


def _not_at_home(account: str, at: Coordinates, home: int) -> InternalInputError:
    return InternalInputError(f"{at}: account {account} lives on partition {home}")
