"""A plain model of the whole system: the outcomes of payments, computed independently of the services.

It is written from the rules (docs/adr, README), with dictionaries, integers and fractions, and shares no decision
with the services: it knows the event schemas of accounts and fees, and where an account lives. No partitions, offsets
or transactions: it takes one instruction after the other. Pure.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shared.events.partitions import partition_for
from shared.events.reference import Fee
from tests.partitions import PARTITIONS

Line = dict[str, Any]
Identity = tuple[str, str]
Entry = tuple[str, str, int]

OPERATOR = "operator"
DIGITS = {"EUR": 2, "USD": 2, "GBP": 2, "CHF": 2, "JPY": 0}
LARGEST_MINOR = 2**53 - 1


@dataclass(frozen=True)
class Client:
    """Who sent an instruction; `house` is the scope."""

    name: str
    house: bool = False


THE_OPERATOR = Client(OPERATOR, house=True)


def client_of(header: str | None) -> Client | None:
    """The client that a raw record's header names: `name:key`, with `:house` behind it for the scope."""
    name, *others = (header or "").split(":")
    if not name or len(others) not in {1, 2} or others[1:] not in ([], ["house"]):
        return None
    return Client(name, others[1:] == ["house"])


@dataclass
class Outcome:
    """Outcome of one payment, reversal or opening of an account.

    Attributes:
        declined: the reason; None if it was booked.
        debit, credit: entries of the two legs, sorted; the credit leg's are empty until it is booked.
        fee_minor, rate: of its price.
        reverses: payment_id that a booked reversal reverses.
        opened: owner, overdraft and version that an opening gave its account.
    """

    value_date: str
    declined: str | None = None
    debit: tuple[Entry, ...] = ()
    credit: tuple[Entry, ...] = ()
    fee_minor: int = 0
    rate: str | None = None
    reverses: str | None = None
    reference: str = ""
    opened: tuple[str, int | None, int] | None = None


@dataclass
class Owed:
    """A credit leg: the amount that the creditor is to get, or to give back."""

    creditor: str
    currency: str
    amount_minor: int


class Intake:
    """Which lines are new: the first of each (debtor, payment_id).

    Attributes:
        accepted: the new ones, in order of arrival.
        clients: who sent each of them.
        repeats, conflicts: number of repeats with the same content, and with other content.
    """

    def __init__(self) -> None:
        self.accepted: dict[Identity, Line] = {}
        self.clients: dict[Identity, Client | None] = {}
        self.repeats = 0
        self.conflicts = 0

    def take(self, value: bytes, client: Client | None = THE_OPERATOR) -> Identity | None:
        """Take a line, and return its identity if it is new. A repeat by another client stays the first client's."""
        line: Line = json.loads(value)
        identity = line["debtor"], line["payment_id"]
        known = self.accepted.get(identity)
        if known is None:
            self.accepted[identity] = line
            self.clients[identity] = client
            return identity
        if _content(known) == _content(line):
            self.repeats += 1
        else:
            self.conflicts += 1
        return None


def _content(line: Line) -> Line:
    said = {"type": "payment", "reference": "", "value_date": None, **line}
    if said["type"] == "account_opening":
        return {"overdraft_minor": 0, "expected_version": None, "owner": None, **said}
    if said["type"] == "payment":
        said["credit_currency"] = said.get("credit_currency") or said["currency"]
    return said


class Books:
    """The accounts, and the outcome of each instruction.

    A debit leg is booked by `debit`; its credit leg waits until `credit`, as it does in the real system.

    Args:
        fees: by currency.
        rates: by pair, EUR/USD, as decimal strings.
    """

    def __init__(self, fees: Mapping[str, Fee], rates: Mapping[str, str], partitions: int = PARTITIONS) -> None:
        self._partitions = partitions
        self._fees = fees
        self._rates = rates
        self._balances: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.limits_minor: dict[str, int | None] = {}
        self.closed: set[str] = set()
        self.owners: defaultdict[str, str] = defaultdict(lambda: OPERATOR)
        self.versions: defaultdict[str, int] = defaultdict(int)
        self._known: set[str] = set()  # accounts that were opened, closed, debited or credited
        self.outcomes: dict[Identity, Outcome] = {}
        self._paid: dict[Identity, Owed] = {}
        self._reversed: set[Identity] = set()
        self._owed: dict[Identity, Owed] = {}

    @property
    def balances(self) -> dict[tuple[str, str], int]:
        """All balances but zeros, by account and currency."""
        return {key: amount for key, amount in self._balances.items() if amount}

    def sums(self) -> dict[tuple[str, str], int]:
        """House accounts by name and currency, their shards added up; zeros stay."""
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for (account, currency), amount in self._balances.items():
            if "@" in account:
                found[account.rpartition("@")[0], currency] += amount
        return dict(found)

    @property
    def legs(self) -> int:
        """Postings so far."""
        return sum(bool(outcome.debit) + bool(outcome.credit) for outcome in self.outcomes.values())

    def open(
        self, account: str, overdraft_minor: int | None, owner: str = OPERATOR, expected_version: int | None = None
    ) -> None:
        """Open an account, or change its terms, by an operator's command; not if it expects another version."""
        if expected_version in {None, self.versions[account]}:
            self._open(account, overdraft_minor, owner)

    def _open(self, account: str, overdraft_minor: int | None, owner: str) -> None:
        before = self.limits_minor.get(account, 0), self.owners[account]
        if account not in self._known or account in self.closed or before != (overdraft_minor, owner):
            self.versions[account] += 1
        self.limits_minor[account], self.owners[account] = overdraft_minor, owner
        self.closed.discard(account)
        self._known.add(account)

    def close(self, account: str) -> None:
        """Close an account."""
        if account not in self.closed:
            self.versions[account] += 1
        self.closed.add(account)
        self._known.add(account)

    def command(self, line: Line, client: Client | None, day: str) -> Outcome:
        """Open an account by an instruction that a client sent on a day, or decline it."""
        account, outcome = line["debtor"], self._outcome(line, day)
        owner = line.get("owner") or (client.name if client else "")
        overdraft_minor, expected = line.get("overdraft_minor", 0), line.get("expected_version")
        mine = client is not None and (
            account not in self._known or (self.owners[account] == client.name and account not in self.closed)
        )
        modest = client is not None and owner == client.name and overdraft_minor == 0
        if client is None or not (client.house or (mine and modest)):
            outcome.declined = "not_authorised"
        elif expected not in {None, self.versions[account]}:
            outcome.declined = "stale_version"
        else:
            self._open(account, overdraft_minor, owner)
            outcome.opened = owner, overdraft_minor, self.versions[account]
        return outcome

    def _outcome(self, line: Line, day: str) -> Outcome:
        identity = line["debtor"], line["payment_id"]
        assert identity not in self.outcomes, f"{identity} is processed for the second time"
        outcome = self.outcomes[identity] = Outcome(day)
        return outcome

    def debit(self, line: Line, client: Client | None = THE_OPERATOR) -> Outcome:
        """Book or decline a new payment or reversal that a client sent."""
        identity, debtor = (line["debtor"], line["payment_id"]), line["debtor"]
        outcome = self._outcome(line, line["value_date"])
        house = "@" in debtor
        if client is None or not (client.house if house else client.name == self.owners[debtor]):
            outcome.declined = "not_authorised"
        elif line.get("type", "payment") == "reversal":
            self._reverse(line, identity, outcome)
        else:
            self._pay(line, identity, outcome)
        if outcome.declined is None:
            outcome.reference = line.get("reference", "")
            self._book(outcome.debit)
        return outcome

    def credit(self, identity: Identity) -> None:
        """Book the credit leg of a debit leg; to suspense if the creditor is closed by then."""
        owed = self._owed.pop(identity)
        q = partition_for(owed.creditor, self._partitions)
        receiver = f"suspense@{q}" if owed.creditor in self.closed else owed.creditor
        legs = [(f"in-transit@{q}", owed.currency, -owed.amount_minor), (receiver, owed.currency, owed.amount_minor)]
        self.outcomes[identity].credit = tuple(sorted(legs))
        self._book(legs)

    def settle(self) -> None:
        """Book all credit legs that are owed."""
        for identity in list(self._owed):
            self.credit(identity)

    def _book(self, entries: "tuple[Entry, ...] | list[Entry]") -> None:
        for account, currency, amount in entries:
            self._balances[account, currency] += amount
            self._known.add(account)

    def _pay(self, line: Line, identity: Identity, outcome: Outcome) -> None:
        debtor, currency, amount = line["debtor"], line["currency"], line["amount_minor"]
        bought = line.get("credit_currency") or currency
        fee, credit = self._fee(debtor, currency, amount), amount
        rate = None
        if bought != currency:
            rate = self._rates.get(f"{currency}/{bought}")
            if rate is None:
                outcome.declined = "no_rate"
                return
            whole = Fraction(amount, 10 ** DIGITS[currency]) * Fraction(rate)
            credit = round(whole * 10 ** DIGITS[bought])  # Python's round() takes halves to even
        outcome.declined = self._refusal(debtor, currency, amount, fee, credit)
        if outcome.declined is not None:
            return
        p = partition_for(debtor, self._partitions)
        lines = [(debtor, currency, -(amount + fee)), (f"in-transit@{p}", bought, credit)]
        if fee:
            lines.append((f"fees@{p}", currency, fee))
        if bought != currency:
            lines += [(f"fx:{currency}@{p}", currency, amount), (f"fx:{bought}@{p}", bought, -credit)]
        outcome.debit, outcome.fee_minor, outcome.rate = tuple(sorted(lines)), fee, rate
        self._owed[identity] = self._paid[identity] = Owed(line["creditor"], bought, credit)

    def _fee(self, debtor: str, currency: str, amount: int) -> int:
        schedule = self._fees.get(currency)
        if schedule is None or "@" in debtor:
            return 0
        charged = schedule.fixed_minor + round(Fraction(amount * schedule.basis_points, 10_000))
        charged = max(charged, schedule.min_minor)
        return charged if schedule.max_minor is None else min(charged, schedule.max_minor)

    def _refusal(self, debtor: str, currency: str, amount: int, fee: int, credit: int) -> str | None:
        if credit == 0:
            return "amount_vanishes"
        if credit > LARGEST_MINOR or fee > LARGEST_MINOR:
            return "amount_too_large"
        if debtor in self.closed:
            return "debtor_closed"
        limit = None if "@" in debtor else self.limits_minor.get(debtor, 0)
        if limit is not None and self._balances[debtor, currency] + limit < amount + fee:
            return "insufficient_funds"
        return None

    def _reverse(self, line: Line, identity: Identity, outcome: Outcome) -> None:
        debtor = line["debtor"]
        original = debtor, line["reverses"]
        if original not in self._paid:
            outcome.declined = "original_not_found"
            return
        if original in self._reversed:
            outcome.declined = "already_reversed"
            return
        self._reversed.add(original)
        receiver = f"suspense@{partition_for(debtor, self._partitions)}" if debtor in self.closed else debtor
        outcome.debit = tuple(
            sorted(
                (receiver if account == debtor else account, currency, -amount)
                for account, currency, amount in self.outcomes[original].debit
            )
        )
        outcome.reverses = line["reverses"]
        paid = self._paid[original]
        self._owed[identity] = Owed(paid.creditor, paid.currency, -paid.amount_minor)
