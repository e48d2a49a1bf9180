"""A small consistent system in memory: the records of all topics, written step by step without any service.

A test changes a record, and checks the verdict of the audit.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.checkers.audit import TOPICS, Audit
from deploy.checkers.verdict import Verdict
from shared.eos.progress import NextOffset, encode_next_offset
from shared.eos.records import Record
from shared.events import catalogue, partitions
from shared.events.clients import OPERATOR, OWNER_UNNAMED, SubmittedBy, encode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.headers import REASON, SUBMITTED_BY, Coordinates, Headers, header
from shared.events.installation import OWNERSHIP_KEY, Ownership, encode_ownership
from shared.events.payments import (
    SCHEMA_VERSION,
    AccountOpening,
    Instruction,
    Payment,
    Repeat,
    Reversal,
    encode_accepted,
    encode_instruction,
    encode_repeat,
)
from shared.events.postings import (
    Account,
    AccountTerms,
    Decline,
    Entry,
    NotifiedBy,
    Posting,
    encode_account,
    encode_ledger_event,
    encode_terms,
)
from shared.events.reference import ExpectedBalance, Fee, Rate, encode_reference
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    DeclineReason,
    PricedBy,
    Transfer,
    TransferReversal,
    encode_transfer,
)
from tests.partitions import PARTITIONS
from tests.payments import decode_instruction

DATE = "2026-01-05"
RECEIVED = "2026-01-05"
"""Day of receipt of all records at AT_MS."""
AT_MS = 1_767_600_000_000
BEYOND_LIMITS_MINOR = 500_000_000


def by_none(account: str) -> NotifiedBy | None:
    """Return what an event of an account without subscriptions names."""
    return None if "@" in account else NotifiedBy(None, None)


@dataclass
class Trail:
    """Coordinates of one payment's records."""

    raw: Coordinates
    accepted: Coordinates
    transfer: Coordinates
    debit: Coordinates
    leg: Coordinates
    credit: Coordinates


class World:
    """Every topic's records by partition, in order; a marker takes the offset after each.

    Attributes:
        by: who submits the payments that follow; None is a raw record without the header.
        raw_from: from which offset of payments.raw on that counts, on every partition; None never.
        debits: debit postings of payments by debtor and payment_id, as reversals take them back.
    """

    def __init__(
        self, partitions: int = PARTITIONS, raw_from: int | None = 0, by: SubmittedBy | None = OPERATOR
    ) -> None:
        self.by = by
        self.raw_from = raw_from
        self.partitions = partitions
        self.logs: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.committed: dict[str, dict[int, int]] = {"ingest": {}, "transform": {}, "ledger": {}, "outbox": {}}
        self.balances: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.terms: dict[str, AccountTerms] = {}
        self.beginnings: dict[tuple[str, int], int] = {}
        self.removed: dict[Coordinates, Record] = {}
        self.sinks: dict[str, list[str]] | None = None
        self._next: dict[tuple[str, int], int] = defaultdict(int)
        self.debits: dict[tuple[str, str], Posting] = {}
        self.now_ms = AT_MS  # timestamp of the records that follow
        self._reference: dict[tuple[str, str], tuple[Fee | Rate | None, str | None]] = {}
        if raw_from is not None:
            ownership = Ownership((raw_from,) * partitions, AT_MS)
            self.append(catalogue.INSTALLATION, 0, encode_ownership(ownership), OWNERSHIP_KEY)

    def home(self, account: str) -> int:
        """The partition of an account."""
        return partitions.partition_for(account, self.partitions)

    def append(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None = None, **links: Coordinates
    ) -> Coordinates:
        """Add a record at the next offset; `links` are its origin and source."""
        offset = self._next[topic, partition]
        self._next[topic, partition] = offset + 2
        headers: Headers = tuple((name, at.encode()) for name, at in links.items())
        self.logs[topic, partition].append(Record(topic, partition, offset, self.now_ms, key, value, headers))
        return Coordinates(topic, partition, offset)

    def at(self, where: Coordinates) -> Record:
        """The record at these coordinates."""
        return self.logs[where.topic, where.partition][self._index(where)]

    def remove(self, where: Coordinates) -> Record:
        """Remove a record, as if it had been aborted."""
        record = self.removed[where] = self.logs[where.topic, where.partition].pop(self._index(where))
        return record

    def restore(self, where: Coordinates) -> Coordinates:
        """Write a removed record at the end of its partition, as a repair does."""
        record = self.removed.pop(where)
        at = self.append(where.topic, where.partition, record.value, record.key)
        self.logs[where.topic, where.partition][-1] = record._replace(offset=at.offset)
        return at

    def change(self, where: Coordinates, value: bytes | None = None, **links: Coordinates) -> None:
        """Give a record another value, or other links."""
        record = self.at(where)
        headers = {**dict(record.headers), **{name: at.encode() for name, at in links.items()}}
        self.logs[where.topic, where.partition][self._index(where)] = record._replace(
            value=record.value if value is None else value, headers=tuple(headers.items())
        )

    def copy(self, where: Coordinates) -> Coordinates:
        """Write a record a second time, at the end of its partition."""
        record = self.at(where)
        again = self.append(where.topic, where.partition, record.value)
        self.logs[where.topic, where.partition][-1] = record._replace(offset=again.offset)
        return again

    def _index(self, where: Coordinates) -> int:
        records = self.logs[where.topic, where.partition]
        return next(index for index, record in enumerate(records) if record.offset == where.offset)

    def refer(self, topic: str, key: str, value: Fee | Rate | None) -> str | None:
        """Put a fee or rate in force, None for none, unless it is; its coordinates as a transfer names them."""
        known, at = self._reference.get((topic, key), (None, None))
        if known != value:
            written = self.append(topic, 0, None if value is None else encode_reference(value), key.encode())
            at = None if value is None else f"0:{written.offset}"
            self._reference[topic, key] = value, at
        return at

    def _priced_by(self, debtor: str, fee_minor: int, converted: tuple[int, str, str] | None) -> PricedBy:
        fee = Fee(fee_minor) if fee_minor else None
        known = self._reference.get((catalogue.REFERENCE_FEES, "CZK"), (None, None))
        at = known[1] if "@" in debtor else self.refer(catalogue.REFERENCE_FEES, "CZK", fee)
        if converted is None:
            return PricedBy(at, None)
        _, credit_currency, rate = converted
        return PricedBy(at, self.refer(catalogue.REFERENCE_RATES, f"CZK/{credit_currency}", Rate(rate)))

    def raw(self, value: bytes, partition: int) -> Coordinates:
        """Write a raw record, consumed by ingest."""
        at = self.append(catalogue.PAYMENTS_RAW, partition, value)
        if self.by is not None:
            self.add_header(at, SUBMITTED_BY, encode_submitted_by(self.by).decode())
        self.committed["ingest"][partition] = at.offset + 1
        self.log_next_offset(partition, at.offset + 1, catalogue.PAYMENTS_IDENTITIES)
        return at

    def outcome(self, topic: str, raw: Coordinates, value: bytes) -> Coordinates:
        """Write ingest's outcome of a raw record."""
        return self.append(topic, raw.partition, value, origin=raw, source=raw)

    def _accept(self, instruction: Instruction) -> tuple[Coordinates, Coordinates]:
        raw = self.raw(encode_instruction(instruction), self.home(instruction.debtor))
        accepted = self.outcome(catalogue.PAYMENTS_ACCEPTED, raw, encode_accepted(instruction, -1, self.by))
        self.committed["transform"][raw.partition] = accepted.offset + 1
        self.log_next_offset(raw.partition, accepted.offset + 1, catalogue.TRANSFORM_PROGRESS)
        return raw, accepted

    def counts_for(self, raw: Coordinates) -> SubmittedBy | None:
        """For whom a payment counts, as the ledger writes it."""
        return self.by if self.raw_from is not None and raw.offset >= self.raw_from else OPERATOR

    def _transfer(self, event: bytes, partition: int, **links: Coordinates) -> Coordinates:
        at = self.append(catalogue.LEDGER_TRANSFERS, partition, event, None, **links)
        self.committed["ledger"][partition] = at.offset + 1
        return at

    def pay(
        self,
        payment_id: str,
        debtor: str,
        creditor: str,
        amount_minor: int,
        *,
        fee_minor: int = 0,
        converted: tuple[int, str, str] | None = None,
        to_suspense: bool = False,
    ) -> Trail:
        """Take a payment in CZK through all services.

        Args:
            converted: credit amount, credit currency and rate.
        """
        credit_minor, credit_currency, rate = converted or (amount_minor, "CZK", None)
        asked = credit_currency if converted else None
        payment = Payment(payment_id, debtor, creditor, amount_minor, "CZK", SCHEMA_VERSION, asked, DATE)
        raw, accepted = self._accept(payment)
        p, q = self.home(debtor), self.home(creditor)
        transfer = Transfer(
            payment_id,
            debtor,
            creditor,
            amount_minor,
            "CZK",
            credit_minor,
            credit_currency,
            DATE,
            fee_minor,
            rate,
            priced_by=self._priced_by(debtor, fee_minor, converted),
            submitted_by=self.by,
        )
        ordered = self._transfer(encode_transfer(transfer), p, origin=raw, source=accepted)
        entries = [
            Entry(debtor, "CZK", -amount_minor - fee_minor),
            Entry(f"in-transit@{p}", credit_currency, credit_minor),
        ]
        if fee_minor:
            entries.append(Entry(f"fees@{p}", "CZK", fee_minor))
        if converted:
            entries += [
                Entry(f"fx:CZK@{p}", "CZK", amount_minor),
                Entry(f"fx:{credit_currency}@{p}", credit_currency, -credit_minor),
            ]
        posting = Posting(
            payment_id,
            "debit",
            debtor,
            creditor,
            tuple(entries),
            DATE,
            fee_minor=fee_minor,
            rate=rate,
            notified_by=by_none(debtor),
            submitted_by=self.counts_for(raw),
        )
        self.debits[debtor, payment_id] = posting
        debit = self._post(posting, raw, ordered)
        leg = CreditLeg(payment_id, debtor, creditor, credit_minor, credit_currency, DATE)
        sent, credit = self._credit(leg, raw, ordered, f"suspense@{q}" if to_suspense else creditor)
        return Trail(raw, accepted, ordered, debit, sent, credit)

    def _credit(
        self, leg: CreditLeg, raw: Coordinates, ordered: Coordinates, account: str
    ) -> tuple[Coordinates, Coordinates]:
        q = self.home(leg.creditor)
        sent = self._transfer(encode_transfer(leg), q, origin=raw, source=ordered)
        entries = (
            Entry(f"in-transit@{q}", leg.currency, -leg.amount_minor),
            Entry(account, leg.currency, leg.amount_minor),
        )
        posting = Posting(
            leg.payment_id,
            "credit",
            leg.debtor,
            leg.creditor,
            entries,
            DATE,
            leg.reversal,
            notified_by=by_none(leg.creditor),
        )
        return sent, self._post(posting, raw, sent)

    def _post(self, posting: Posting, origin: Coordinates, source: Coordinates) -> Coordinates:
        for entry in posting.entries:
            self.balances[entry.account][entry.currency] += entry.amount_minor
        at = self.append(
            catalogue.LEDGER_POSTINGS, source.partition, encode_ledger_event(posting), origin=origin, source=source
        )
        self._log({entry.account for entry in posting.entries}, source)
        return at

    def _log(self, accounts: set[str], source: Coordinates) -> None:
        for account in sorted(accounts):
            self.log_account(account, source.partition, source=source)
        self.log_next_offset(source.partition, source.offset + 1, source=source)

    def log_account(self, account: str, partition: int, **links: Coordinates) -> Coordinates:
        """Write the account's state to the changelog."""
        state = self._state(account)
        return self.append(
            catalogue.LEDGER_BALANCES, partition, encode_account(state), b"account/" + account.encode(), **links
        )

    def _state(self, account: str) -> Account:
        terms = self.terms.get(account, AccountTerms(OWNER_UNNAMED, 0, None if "@" in account else 0))
        return Account(dict(self.balances[account]), terms.overdraft_minor, terms.closed, terms.owner, terms.version)

    def log_next_offset(
        self, partition: int, next_offset: int, topic: str = catalogue.LEDGER_BALANCES, **links: Coordinates
    ) -> None:
        """Write a service's next offset to its changelog."""
        value = encode_next_offset(NextOffset(next_offset))
        self.append(topic, partition, value, b"next_offset", **links)

    def _decline(self, event: Decline, raw: Coordinates, ordered: Coordinates) -> Coordinates:
        whole = msgspec.structs.replace(event, notified_by=by_none(event.debtor), submitted_by=self.counts_for(raw))
        at = self.append(
            catalogue.LEDGER_POSTINGS, ordered.partition, encode_ledger_event(whole), origin=raw, source=ordered
        )
        self.log_next_offset(ordered.partition, ordered.offset + 1)
        return at

    def decline(
        self, payment_id: str, debtor: str, creditor: str, *, no_rate: bool = False, because: str | None = None
    ) -> Trail:
        """Write a payment that the ledger declines. Its legs' coordinates are the decline's.

        Args:
            no_rate: it asks for a currency without a rate; else it is beyond its debtor's limit.
            because: another reason than that.
        """
        amount_minor, bought = BEYOND_LIMITS_MINOR, "USD" if no_rate else "CZK"
        asked = bought if no_rate else None
        raw, accepted = self._accept(Payment(payment_id, debtor, creditor, amount_minor, "CZK", SCHEMA_VERSION, asked))
        p = self.home(debtor)
        reason = DeclineReason.NO_RATE if no_rate else DeclineReason.INSUFFICIENT_FUNDS
        transfer = Transfer(
            payment_id,
            debtor,
            creditor,
            amount_minor,
            "CZK",
            0 if no_rate else amount_minor,
            bought,
            DATE,
            decline=reason if no_rate else None,
            priced_by=self._priced_by(debtor, 0, None),
            submitted_by=self.by,
        )
        ordered = self._transfer(encode_transfer(transfer), p, origin=raw, source=accepted)
        at = self._decline(Decline(payment_id, debtor, because or reason, DATE), raw, ordered)
        return Trail(raw, accepted, ordered, at, at, at)

    def reverse(self, payment_id: str, debtor: str, reverses: str, *, to_suspense: bool = False) -> Trail:
        """Reverse an earlier payment; to suspense if the debtor was closed since."""
        raw, accepted = self._accept(Reversal(payment_id, debtor, reverses, SCHEMA_VERSION, DATE))
        p = self.home(debtor)
        event = TransferReversal(payment_id, debtor, reverses, DATE, submitted_by=self.by)
        ordered = self._transfer(encode_transfer(event), p, origin=raw, source=accepted)
        original = self.debits[debtor, reverses]
        creditor = original.creditor
        entries = tuple(
            Entry(
                f"suspense@{p}" if to_suspense and entry.account == debtor else entry.account,
                entry.currency,
                -entry.amount_minor,
            )
            for entry in original.entries
        )
        posting = Posting(
            payment_id,
            "debit",
            debtor,
            creditor,
            entries,
            DATE,
            reversal=True,
            reverses=reverses,
            notified_by=by_none(debtor),
            submitted_by=self.counts_for(raw),
        )
        debit = self._post(posting, raw, ordered)
        back = next(entry for entry in entries if entry.account.startswith("in-transit@"))
        leg = CreditLeg(payment_id, debtor, creditor, back.amount_minor, back.currency, DATE, reversal=True)
        sent, credit = self._credit(leg, raw, ordered, creditor)
        return Trail(raw, accepted, ordered, debit, sent, credit)

    def repeat(self, first: Coordinates) -> tuple[Coordinates, Coordinates]:
        """Repeat a payment; returns its raw record and ingest's record of the repeat."""
        value = self.at(first).value or b""
        raw = self.raw(value, first.partition)
        instruction = decode_instruction(value)
        repeat = Repeat(instruction.payment_id, instruction.debtor, str(first))
        return raw, self.outcome(catalogue.PAYMENTS_DEDUPLICATED, raw, encode_repeat(repeat))

    def refuse(self, value: bytes, partition: int = 0) -> tuple[Coordinates, Coordinates]:
        """Write a bad record; returns its raw record and its dead letter."""
        raw = self.raw(value, partition)
        reason = Reason.NOT_JSON if value.isascii() else Reason.NOT_UTF8
        return raw, self.dead_letter(raw, reason)

    def dead_letter(self, raw: Coordinates, reason: str) -> Coordinates:
        """Write the dead letter of a raw record."""
        at = self.outcome(catalogue.PAYMENTS_DEAD_LETTER, raw, self.at(raw).value or b"")
        self.add_header(at, REASON, reason)
        submitted_by = header(self.at(raw).headers, SUBMITTED_BY)
        if submitted_by is not None:
            self.add_header(at, SUBMITTED_BY, submitted_by.decode())
        return at

    def add_header(self, where: Coordinates, name: str, value: str) -> None:
        record = self.at(where)
        headers = (*record.headers, (name, value.encode()))
        self.logs[where.topic, where.partition][self._index(where)] = record._replace(headers=headers)

    def account_event(self, event: AccountOpened | AccountClosed) -> tuple[Coordinates, Coordinates]:
        """Open or close an account, in ledger.transfers and in ledger.postings."""
        at = self._transfer(encode_transfer(event), self.home(event.account))
        return at, self._change_terms(event, at, at)

    def command(self, event: AccountOpened | AccountClosed) -> Coordinates:
        """Order an account's opening or closing that changes nothing, and so has no outcome."""
        at = self._transfer(encode_transfer(event), self.home(event.account))
        self.log_next_offset(at.partition, at.offset + 1)
        return at

    def _change_terms(
        self, event: AccountOpened | AccountClosed, origin: Coordinates, source: Coordinates
    ) -> Coordinates:
        """Write an account event with its version, the account's state, and its record of ledger.accounts."""
        account = event.account
        known = account in self.terms or account in self.balances
        before = self.terms.get(account, AccountTerms(OWNER_UNNAMED, 0, None if "@" in account else 0))
        after = msgspec.structs.replace(before, closed=True)
        if isinstance(event, AccountOpened):
            after = AccountTerms(event.owner, before.version, event.overdraft_minor)
        version = before.version + (after != before or not known)
        self.terms[account] = after = msgspec.structs.replace(after, version=version)
        value = encode_ledger_event(msgspec.structs.replace(event, version=version))
        posted = self.append(catalogue.LEDGER_POSTINGS, source.partition, value, origin=origin, source=source)
        terms = encode_terms(after)
        self.append(catalogue.LEDGER_ACCOUNTS, source.partition, terms, account.encode(), origin=origin, source=source)
        self._log({account}, source)
        return posted

    def _order_opening(self, opening: AccountOpening) -> tuple[Coordinates, Coordinates, AccountOpened]:
        raw, accepted = self._accept(opening)
        client = OWNER_UNNAMED if self.by is None else self.by.client
        event = AccountOpened(
            opening.debtor,
            opening.overdraft_minor,
            opening.owner or client,
            0,
            opening.payment_id,
            opening.expected_version,
            RECEIVED,
            self.by,
        )
        at = self._transfer(encode_transfer(event), raw.partition, origin=raw, source=accepted)
        return raw, at, event

    def open(self, payment_id: str, account: str, **fields: Any) -> tuple[Coordinates, Coordinates]:
        """Open an account through payments.raw; returns its record of ledger.transfers, and the account event."""
        raw, at, event = self._order_opening(AccountOpening(payment_id, account, **fields, schema_version=2))
        event = msgspec.structs.replace(event, submitted_by=self.counts_for(raw))
        return at, self._change_terms(event, raw, at)

    def decline_opening(
        self, payment_id: str, account: str, reason: str, **fields: Any
    ) -> tuple[Coordinates, Coordinates]:
        """Decline to open it; returns its record of ledger.transfers, and the decline."""
        raw, at, _ = self._order_opening(AccountOpening(payment_id, account, **fields, schema_version=2))
        return at, self._decline(Decline(payment_id, account, reason, RECEIVED, opening=True), raw, at)

    def decline_command(self, event: AccountOpened) -> tuple[Coordinates, Coordinates]:
        """Decline an operator's command as stale, likewise."""
        at = self._transfer(encode_transfer(event), self.home(event.account))
        by = by_none(event.account)
        declined = Decline("", event.account, DeclineReason.STALE_VERSION, "", opening=True, notified_by=by)
        posted = self.append(
            catalogue.LEDGER_POSTINGS, at.partition, encode_ledger_event(declined), origin=at, source=at
        )
        self.log_next_offset(at.partition, at.offset + 1)
        return at, posted

    def expect(self, account: str, closing_minor: int, opening_minor: int = 0) -> None:
        """Add a bank's own balance of the account."""
        value = encode_reference(ExpectedBalance("CZK", opening_minor, closing_minor, "sample.csv"))
        self.append(catalogue.REFERENCE_BALANCES, self.home(account), value, key=account.encode())

    def audit(
        self,
        *,
        identity_window: int = 1000,
        reversal_window: int = 1000,
        compacted_before_ms: int = 0,
        chunk: int = 3,
    ) -> Verdict:
        """Audit all topics, fed in chunks with the partitions in turn."""
        given = self.sinks is not None
        audit = Audit(
            self._next,
            identity_window=identity_window,
            reversal_window=reversal_window,
            compacted_before_ms=compacted_before_ms,
            file_sinks=given,
            partitions=self.partitions,
        )
        for destination, effect_ids in (self.sinks or {}).items():
            audit.feed_sink(destination, effect_ids)
        for topic in TOPICS:
            logs = {partition: records for (name, partition), records in self.logs.items() if name == topic}
            for begin in range(0, max(map(len, logs.values()), default=0), chunk):
                for partition, records in logs.items():
                    if records[begin : begin + chunk]:
                        audit.feed(topic, partition, records[begin : begin + chunk])
        audit.raw_gaps()
        for (topic, partition), records in self.logs.items():
            if topic == catalogue.PAYMENTS_RAW:
                for record in records:
                    audit.account_for(partition, range(record.offset + 1, record.offset + 2))
        return audit.finish(self.committed, self.beginnings)


def found(verdict: Verdict) -> set[tuple[str, str]]:
    return {(violation.kind, violation.where) for violation in verdict.violations}


def end(world: World, topic: str, partition: int) -> Coordinates:
    """The coordinates of a partition's last record."""
    return Coordinates(topic, partition, world.logs[topic, partition][-1].offset)


def last_state(world: World, account: str) -> Coordinates:
    """The coordinates of an account's last record in the changelog."""
    partition = world.home(account)
    records = world.logs[catalogue.LEDGER_BALANCES, partition]
    offset = max(record.offset for record in records if record.key == b"account/" + account.encode())
    return Coordinates(catalogue.LEDGER_BALANCES, partition, offset)
