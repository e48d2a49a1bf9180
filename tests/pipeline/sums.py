"""Expected sums of a system, computed from its records one by one: an oracle for `spark.balances`."""

from collections import Counter, defaultdict
from typing import NamedTuple

import msgspec

from shared.events import catalogue
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.postings import ACCOUNT_PREFIX, Posting, decode_account, decode_ledger_event
from shared.events.transfers import CreditLeg, decode_transfer
from spark.night import Kind
from tests.partitions import PARTITIONS
from tests.pipeline.found import Found
from tests.world import World

SUM = Found(Kind.AMOUNT.value, None, None, None, None)
"""A wrong sum: no single record is at fault."""


class _Move(NamedTuple):
    source: int
    currency: str
    amount_minor: int


class _State(NamedTuple):
    source: int
    at: Coordinates
    balances: dict[str, int]


class Sums:
    """The accounts of a system at rest, as its postings and as its changelog have them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._moves: defaultdict[str, list[_Move]] = defaultdict(list)
        self._states: defaultdict[str, list[_State]] = defaultdict(list)
        self._last: dict[str, tuple[Coordinates, str]] = {}
        for partition in range(PARTITIONS):
            self._post(partition)
            self._log(partition)

    def _post(self, partition: int) -> None:
        for record in self._world.logs[catalogue.LEDGER_POSTINGS, partition]:
            try:
                posting = decode_ledger_event(record.value or b"")
            except msgspec.DecodeError:
                continue
            if not isinstance(posting, Posting):
                continue
            source = Coordinates.decode(header(record.headers, SOURCE) or b"").offset
            for entry in posting.entries:
                self._moves[entry.account].append(_Move(source, entry.currency, entry.amount_minor))
                self._last[entry.account] = Coordinates(record.topic, partition, record.offset), posting.payment_id

    def _log(self, partition: int) -> None:
        for record in self._world.logs[catalogue.LEDGER_BALANCES, partition]:
            key = record.key or b""
            if key.startswith(ACCOUNT_PREFIX):
                source = Coordinates.decode(header(record.headers, SOURCE) or b"").offset
                at = Coordinates(record.topic, partition, record.offset)
                state = _State(source, at, decode_account(record.value or b"").balances)
                self._states[key[len(ACCOUNT_PREFIX) :].decode()].append(state)

    def breaks(self) -> Counter[Found]:
        """All breaks of the sums."""
        return self.of_accounts() + Counter({SUM: len(self.gaps())})

    def of_accounts(self) -> Counter[Found]:
        """Accounts whose postings and states differ."""
        return Counter(one for account in self._moves.keys() | self._states.keys() for one in self._account(account))

    def gaps(self) -> dict[tuple[str, str], int]:
        """Differences by currency: balances against zero, and money in transit against legs under way."""
        closing = self._closing()
        transit = {("in transit", name): self._in_transit(name) - self._under_way(name) for name in closing}
        found = {**{("closing", name): minor for name, minor in closing.items()}, **transit}
        return {name: gap for name, gap in found.items() if gap}

    def _account(self, account: str) -> set[Found]:
        """The states at which the difference changes, unless it ends at none."""
        states, moves = sorted(self._states[account]), self._moves[account]
        if not states:
            at, payment_id = self._last[account]
            return {Found(Kind.MISSING.value, *at, payment_id)}
        kind = Kind.AMOUNT if moves else Kind.ORPHAN
        wrong = set()
        for currency in {move.currency for move in moves} | {
            currency for state in states for currency in state.balances
        }:
            due = [*states, states[-1]._replace(source=2**62)]
            off = [
                state.balances.get(currency, 0)
                - sum(move.amount_minor for move in moves if move.currency == currency and move.source <= state.source)
                for state in due
            ]
            if off[-1]:
                changed = (now not in (before, 0) for before, now in zip([0, *off], off, strict=False))
                wrong |= {
                    Found(kind.value, *state.at, None) for state, differs in zip(due, changed, strict=True) if differs
                }
        return wrong

    def _closing(self) -> Counter[str]:
        closing = Counter[str]()
        for moves in self._moves.values():
            for move in moves:
                closing[move.currency] += move.amount_minor
        return closing

    def _in_transit(self, currency: str) -> int:
        accounts = [account for account in self._moves if account.startswith("in-transit@")]
        return sum(
            move.amount_minor for account in accounts for move in self._moves[account] if move.currency == currency
        )

    def _under_way(self, currency: str) -> int:
        """Credit legs that the ledger has not consumed."""
        total = 0
        for partition in range(PARTITIONS):
            for record in self._world.logs[catalogue.LEDGER_TRANSFERS, partition]:
                if record.offset >= self._world.committed["ledger"].get(partition, 0):
                    leg = decode_transfer(record.value or b"")
                    total += leg.amount_minor if isinstance(leg, CreditLeg) and leg.currency == currency else 0
        return total

    def balances(self) -> list[str]:
        """Every balance that is not 0: `account currency minor`, sorted."""
        closing = Counter[tuple[str, str]]()
        for account, moves in self._moves.items():
            for move in moves:
                closing[account, move.currency] += move.amount_minor
        return sorted(f"{account} {currency} {minor}" for (account, currency), minor in closing.items() if minor)
