"""The balances: conservation, in transit, replay, and the bank's own figures (I1, I5, I9). Pure.

Two views are compared: the changelog, whose last record for each account is its state, and the fold of
ledger.postings. Feed the changelog before the postings. What is kept grows with the accounts, not with the records.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from deploy.checkers.fingerprints import IN_TRANSIT
from deploy.checkers.offsets import NONE, Progress, home, named, partition_of, place, readable
from deploy.checkers.terms import Terms, terms_after, terms_at_first
from deploy.checkers.verdict import Findings, Kind
from shared.eos.progress import NEXT_OFFSET_KEY
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_BALANCES, LEDGER_POSTINGS, REFERENCE_BALANCES
from shared.events.clients import OWNER_UNNAMED
from shared.events.postings import ACCOUNT_PREFIX, Account, Entry, decode_account, decode_terms
from shared.events.reference import ExpectedBalance, decode_expected_balance
from shared.events.transfers import AccountClosed, AccountOpened

ROUNDING_MINOR = 100
"""Tolerance between a bank's balance and the sum of its published amounts, which are rounded: one crown."""

_PAYMENT_PREFIX = b"payment/"
_Balances = dict[str, dict[str, int]]


class Books:
    """Balances by account, from the changelog and from the postings."""

    def __init__(self, findings: Findings, partitions: int) -> None:
        self._findings = findings
        self._partitions = partitions
        self._changelog: dict[str, tuple[bytes, int]] = {}
        self.progress = Progress(findings, LEDGER_BALANCES)
        self._folded: _Balances = defaultdict(lambda: defaultdict(int))
        self._terms: dict[str, Terms] = {}
        self._owners: dict[str, tuple[Terms, int]] = {}  # of ledger.accounts, with the place of its record
        self._expected: dict[str, ExpectedBalance] = {}
        self.drift_minor = 0  # after `finish`: sum over currencies of the absolute sum of all balances
        self.exact = 0  # after `finish`, like the next two: accounts by how they compare with the bank's balance
        self.within_rounding = 0
        self.off = 0

    def feed_changelog(self, partition: int, records: list[Record]) -> None:
        for record in records:
            key = record.key or b""
            at = place(partition, record.offset)
            if key.startswith(ACCOUNT_PREFIX):
                self._feed_account(key[len(ACCOUNT_PREFIX) :].decode(errors="replace"), record.value, at)
            elif key == NEXT_OFFSET_KEY:
                self.progress.feed_one(partition, record)
            elif not key.startswith(_PAYMENT_PREFIX):
                self._findings.add(Kind.UNREADABLE, named(LEDGER_BALANCES, at), f"unknown key {key[:32]!r}")

    def _feed_account(self, account: str, value: bytes | None, at: int) -> None:
        known = self._changelog.get(account)
        if known is not None and partition_of(known[1]) != partition_of(at):
            self._check_home(account, known[1])  # the later one may be right, and takes its place
        if value is None:
            self._changelog.pop(account, None)
        else:
            self._changelog[account] = (value, at)

    def feed_accounts(self, partition: int, records: list[Record]) -> None:
        for record, at, where, terms in readable(self._findings, LEDGER_ACCOUNTS, partition, records, decode_terms):
            account = (record.key or b"").decode(errors="replace")
            self._owners[account] = Terms(terms.overdraft_minor, terms.closed, terms.owner, terms.version), at
            right = home(account, self._partitions)
            if right != partition:
                self._findings.add(Kind.OWNER_DIFFERS, where, f"{account} lives on partition {right}")

    def feed_expected(self, partition: int, records: list[Record]) -> None:
        for record in records:
            account = (record.key or b"").decode(errors="replace")
            if record.value is None:
                self._expected.pop(account, None)
                continue
            try:
                self._expected[account] = decode_expected_balance(record.value)
            except msgspec.DecodeError as error:
                where = named(REFERENCE_BALANCES, place(partition, record.offset))
                self._findings.add(Kind.UNREADABLE, where, str(error))

    def fold(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._folded[entry.currency][entry.account] += entry.amount_minor

    def fold_terms(self, event: AccountOpened | AccountClosed) -> None:
        """Apply an account's opening or closing, in its partition's order."""
        self._terms[event.account] = terms_after(self._terms_of(event.account), event)

    def terms(self, account: str) -> Terms | None:
        """Return the account's terms; None where it has no state, neither terms nor a posting."""
        if account not in self._terms and not any(account in by_account for by_account in self._folded.values()):
            return None
        return self._terms_of(account)

    def _terms_of(self, account: str) -> Terms:
        return self._terms.get(account) or terms_at_first(account)

    def owner(self, account: str) -> str:
        """Return the client that owns the account."""
        return self._terms[account].owner if account in self._terms else OWNER_UNNAMED

    def is_closed(self, account: str) -> bool:
        return account in self._terms and self._terms[account].closed

    def overdraft_minor(self, account: str) -> int | None:
        """Return how far below zero the account may go; None is unlimited, as every house account is."""
        if "@" in account:
            return None
        return self._terms[account].overdraft_minor if account in self._terms else 0

    def balance_minor(self, account: str, currency: str) -> int:
        """Return the sum of its postings so far."""
        by_account = self._folded.get(currency)
        return by_account.get(account, 0) if by_account is not None else 0

    def missing_write(self, account: str | None, partition: int, source_offset: int) -> str | None:
        """Describe a posting's changelog write that is absent; None if all are there.

        `account` is the account that the posting changed, if any; `source_offset` is its source's in ledger.transfers.
        """
        next_offset = self.progress.next_offset(partition)
        if next_offset <= source_offset:
            return f"the changelog of partition {partition} is at next_offset {next_offset}"
        if account is not None and account not in self._changelog:
            return f"the changelog has no account {account}"
        return None

    @property
    def digest(self) -> str:
        """SHA-256, hex, over the balances that the postings fold to, those that are not 0.

        One line `account currency minor` each, sorted by its bytes, each ended by a newline. The reconciliation and the
        view compute the same.
        """
        lines = sorted(
            f"{account} {currency} {amount_minor}".encode()
            for currency, by_account in self._folded.items()
            for account, amount_minor in by_account.items()
            if amount_minor
        )
        return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()

    @property
    def currencies(self) -> int:
        return len(self._folded)

    @property
    def accounts(self) -> int:
        """Number of accounts in the changelog."""
        return len(self._changelog)

    @property
    def accounts_expected(self) -> int:
        """Number of accounts with a bank's balance to compare with."""
        return len(self._expected)

    def finish(self) -> None:
        """Compare the two views with each other, with zero and with the bank's balances."""
        balances = self._compare()
        self._compare_owners()
        drifts = [self._check_sums(balances, LEDGER_BALANCES), self._check_sums(self._folded, LEDGER_POSTINGS)]
        self.drift_minor = max(drifts)
        for account, expected in self._expected.items():
            self._check_expected(account, expected, balances)

    def _compare(self) -> _Balances:
        """Compare changelog and fold; return the changelog's balances by currency and account."""
        balances: _Balances = defaultdict(dict)
        for account, (value, at) in self._changelog.items():
            where = named(LEDGER_BALANCES, at)
            try:
                state = decode_account(value)
            except msgspec.DecodeError as error:
                self._findings.add(Kind.UNREADABLE, where, str(error))
                continue
            for currency, amount_minor in state.balances.items():
                balances[currency][account] = amount_minor
            self._compare_terms(account, state, where)
            self._check_home(account, at)
        for currency, account in self._keys(balances):
            logged = balances.get(currency, {}).get(account, 0)
            folded = self._folded.get(currency, {}).get(account, 0)
            if logged != folded:
                self._findings.add(
                    Kind.BALANCE_DIFFERS,
                    self._where(account),
                    f"{account} has {logged} {currency} minor units, its postings sum to {folded}",
                )
        return balances

    def _keys(self, balances: _Balances) -> Iterator[tuple[str, str]]:
        for currency, by_account in self._folded.items():
            for account in by_account:
                yield currency, account
        for currency, by_account in balances.items():
            for account in by_account:
                if account not in self._folded.get(currency, {}):
                    yield currency, account

    def _check_home(self, account: str, at: int) -> None:
        right = home(account, self._partitions)
        if right != partition_of(at):
            self._findings.add(
                Kind.BALANCE_DIFFERS, named(LEDGER_BALANCES, at), f"{account} lives on partition {right}"
            )

    def _compare_terms(self, account: str, state: Account, where: str) -> None:
        found, terms = Terms(state.overdraft_minor, state.closed, state.owner, state.version), self._terms_of(account)
        if "@" in account and account not in self._terms:  # unlimited by its name, whatever its state says
            found = found._replace(overdraft_minor=None)
        if found != terms:
            self._findings.add(
                Kind.TERMS_DIFFER, where, f"{account} has {_shown(found)}; its events say {_shown(terms)}"
            )

    def _compare_owners(self) -> None:
        """Compare ledger.accounts with the fold of the account events. Those of former versions are not in it."""
        for account, (_, at) in self._owners.items():
            if account not in self._terms:
                self._findings.add(Kind.OWNER_DIFFERS, named(LEDGER_ACCOUNTS, at), f"{account} has no account event")
        for account, terms in self._terms.items():
            known = self._owners.get(account)
            if known is None:
                if terms.version:
                    where = f"{LEDGER_ACCOUNTS}:{home(account, self._partitions)}"
                    self._findings.add(Kind.OWNER_DIFFERS, where, f"{account} is missing")
            elif known[0] != terms:
                detail = f"{account} has {_shown(known[0])}; its events say {_shown(terms)}"
                self._findings.add(Kind.OWNER_DIFFERS, named(LEDGER_ACCOUNTS, known[1]), detail)

    def _check_sums(self, balances: _Balances, topic: str) -> int:
        """Check I1 and I5 in one view; return its drift in minor units."""
        drift_minor = 0
        for currency, by_account in balances.items():
            total = sum(by_account.values())
            drift_minor += abs(total)
            if total:
                self._findings.add(Kind.DRIFT, topic, f"all balances in {currency} sum to {total}")
            in_transit = sum(
                amount_minor for account, amount_minor in by_account.items() if account.startswith(f"{IN_TRANSIT}@")
            )
            if in_transit:
                self._findings.add(Kind.IN_TRANSIT, topic, f"in transit in {currency}: {in_transit}")
        return drift_minor

    def _check_expected(self, account: str, expected: ExpectedBalance, balances: _Balances) -> None:
        booked = balances.get(expected.currency, {}).get(account, 0)
        difference = booked - (expected.closing_minor - expected.opening_minor)
        if difference == 0:
            self.exact += 1
        elif abs(difference) <= ROUNDING_MINOR:
            self.within_rounding += 1
        else:
            self.off += 1
            self._findings.add(
                Kind.BANK_DIFFERS,
                self._where(account),
                f"{account} is {difference} {expected.currency} minor units from the balance in {expected.file}",
            )

    def _where(self, account: str) -> str:
        """Return the account's last changelog record; the topic and partition alone where there is none."""
        known = self._changelog.get(account)
        if known:
            return named(LEDGER_BALANCES, known[1])
        right = home(account, self._partitions)
        return LEDGER_BALANCES if right == NONE else f"{LEDGER_BALANCES}:{right}"


def _shown(terms: Terms) -> str:
    limit = "no limit" if terms.overdraft_minor is None else f"overdraft {terms.overdraft_minor}"
    return f"owner {terms.owner}, version {terms.version}, {limit}, {'closed' if terms.closed else 'open'}"
