"""Torn transactions in memory: one of each service that writes to all its outputs, with some parts aborted.

Invariant: no service runs after a tear, so its records are not completed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset
from shared.events import catalogue
from shared.events.clients import OPERATOR, encode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.effects import EffectRequest, EffectState, Subscription, encode_request
from shared.events.headers import ORIGIN, SOURCE, SUBMITTED_BY, Coordinates, header
from shared.events.payments import (
    SCHEMA_VERSION,
    Payment,
    encode_accepted,
    encode_instruction,
    encode_repeat,
)
from shared.events.payments import Repeat as Repeated
from shared.events.postings import DEBIT, Decline, Entry, Posting, decode_ledger_event, encode_ledger_event
from shared.events.transfers import CreditLeg, DeclineReason, Transfer, encode_transfer
from tests.partitions import PARTITIONS, partition_for
from tests.payments import decode_instruction
from tests.planted import WEBHOOK
from tests.tears import CHANGELOG, LEGS, OFFSET, OTHER_LEGS, Tear
from tests.world import DATE, Trail, last_state
from tests.world_effects import Effects, request_of

_CHANGELOGS: Mapping[str, str] = {
    "ingest": catalogue.PAYMENTS_IDENTITIES,
    "transform": catalogue.TRANSFORM_PROGRESS,
    "ledger": catalogue.LEDGER_BALANCES,
    "outbox": catalogue.EFFECTS_WAITING,
}
_DOWNSTREAM_FIRST = ("outbox", "ledger", "transform", "ingest")
_AMOUNT_MINOR = 500


@dataclass
class Transaction:
    """A transaction and how it ended.

    Attributes:
        partition: of its input.
        records: its inputs and outputs by name, whether they were committed or not.
        written: every record that it wrote.
    """

    tear: Tear
    partition: int
    number: int
    records: dict[str, Coordinates] = field(default_factory=dict)
    written: list[Coordinates] = field(default_factory=list)

    @property
    def service(self) -> str:
        """The service of the transaction."""
        return self.tear.service

    def part_of(self, at: Coordinates) -> str:
        """The part of one of its records."""
        if at.topic == _CHANGELOGS[self.service]:
            return CHANGELOG
        if self.service == "ledger" and at.topic == catalogue.LEDGER_TRANSFERS:
            return LEGS if at.partition == (self.partition + 1) % PARTITIONS else OTHER_LEGS
        return at.topic

    def visible(self, at: Coordinates) -> bool:
        """Whether one of its records was committed."""
        return self.part_of(at) in self.tear.committed


class TornWorld(Effects):
    """Transactions of every service, with complete payments before them."""

    def plant(self, tears: Sequence[Tear], partitions: Sequence[int]) -> list[Transaction]:
        """Write one transaction for each tear, then remove the aborted records.

        The transactions of a partition whose offset was committed come first. So all inputs below the committed offset
        are theirs.

        Args:
            tears: how they end.
            partitions: of the transactions' inputs, used in turn.
        """
        chosen = sorted(tears, key=lambda tear: OFFSET not in tear.committed)
        transactions = [Transaction(tear, partitions[n % len(partitions)], n) for n, tear in enumerate(chosen)]
        steps = {transaction.number: self._steps(transaction) for transaction in transactions}
        for transaction in transactions:
            next(steps[transaction.number])
        for service in _DOWNSTREAM_FIRST:
            own = [transaction for transaction in transactions if transaction.service == service]
            for transaction in own:
                next(steps[transaction.number])
                if OFFSET in transaction.tear.committed:
                    inputs = [at for at in transaction.records.values() if at.partition == transaction.partition]
                    self.committed[service][transaction.partition] = max(at.offset for at in inputs) + 1
            for transaction in own:
                before = dict(self._next)
                next(steps[transaction.number])
                transaction.written = self._since(before)
        for transaction in transactions:
            for at in transaction.written:
                if not transaction.visible(at):
                    self.remove(at)
        return transactions

    def _since(self, before: Mapping[tuple[str, int], int]) -> list[Coordinates]:
        return [
            Coordinates(topic, partition, record.offset)
            for (topic, partition), records in self.logs.items()
            for record in records
            if topic != catalogue.REFERENCE_SUBSCRIPTIONS  # an operator's
            and record.offset >= before.get((topic, partition), 0)
        ]

    def _steps(self, transaction: Transaction) -> Iterator[None]:
        """Three steps: complete payments before it, its inputs, its outputs."""
        steps = {"ingest": self._ingest, "transform": self._transform, "ledger": self._ledger, "outbox": self._outbox}
        return steps[transaction.service](transaction)

    def _ingest(self, of: Transaction) -> Iterator[None]:
        """A payment, a repeat of an earlier one, and a malformed record."""
        p, records = of.partition, of.records
        first = self._pay(f"earlier-{of.number}", of)
        yield
        repeated, refused = self.at(first.raw).value or b"", b"no payment %d" % of.number
        payment = _payment(f"paid-{of.number}", of, p + 1)
        paid = encode_instruction(payment)
        for name, value in (("paid", paid), ("repeated", repeated), ("refused", refused)):
            records[name] = self.append(catalogue.PAYMENTS_RAW, p, value)
            self.add_header(records[name], SUBMITTED_BY, encode_submitted_by(OPERATOR).decode())
        yield
        records["accepted"] = self.outcome(
            catalogue.PAYMENTS_ACCEPTED, records["paid"], encode_accepted(payment, -1, OPERATOR)
        )
        instruction = decode_instruction(repeated)
        repeat = encode_repeat(Repeated(instruction.payment_id, instruction.debtor, str(first.raw)))
        records["repeat"] = self.outcome(catalogue.PAYMENTS_DEDUPLICATED, records["repeated"], repeat)
        records["dead letter"] = self.dead_letter(records["refused"], Reason.NOT_JSON)
        self._progress(catalogue.PAYMENTS_IDENTITIES, of, records["refused"])
        yield

    def _progress(self, topic: str, of: Transaction, last: Coordinates) -> None:
        value = encode_next_offset(NextOffset(last.offset + 1))
        of.records["next offset"] = self.append(topic, of.partition, value, NEXT_OFFSET_KEY, source=last)

    def _transform(self, of: Transaction) -> Iterator[None]:
        """A payment that is priced."""
        p, records = of.partition, of.records
        yield
        payment = _payment(f"priced-{of.number}", of, p + 1)
        raw = self.raw(encode_instruction(payment), p)
        records["paid"] = self.outcome(catalogue.PAYMENTS_ACCEPTED, raw, encode_accepted(payment, -1, OPERATOR))
        yield
        records["transfer"] = self.append(
            catalogue.LEDGER_TRANSFERS, p, _transfer(payment), origin=raw, source=records["paid"]
        )
        self._progress(catalogue.TRANSFORM_PROGRESS, of, records["paid"])
        yield

    def _ledger(self, of: Transaction) -> Iterator[None]:
        """Two payments to two partitions, the first with a request; and a decline."""
        p, records = of.partition, of.records
        yield
        payments = {
            name: _payment(f"{name}-{of.number}", of, p + to)
            for name, to in (("first", 1), ("second", 2), ("third", 1))
        }
        raws = {}
        for name, payment in payments.items():
            raws[name], accepted = self._accept(payment)
            records[name] = self.append(
                catalogue.LEDGER_TRANSFERS, p, _transfer(payment), origin=raws[name], source=accepted
            )
        yield
        for name in ("first", "second"):
            self._debit(of, name, payments[name], raws[name])
        decline = encode_ledger_event(
            Decline(
                *(payments["third"].payment_id, payments["third"].debtor, DeclineReason.INSUFFICIENT_FUNDS, DATE),
                submitted_by=OPERATOR,
            )
        )
        records["decline"] = self.append(
            catalogue.LEDGER_POSTINGS, p, decline, origin=raws["third"], source=records["third"]
        )
        self._progress(catalogue.LEDGER_BALANCES, of, records["third"])
        _, records["request"] = self._request(records["first debit"])
        yield

    def _debit(self, of: Transaction, name: str, payment: Payment, raw: Coordinates) -> None:
        """A debit posting with its states, and its credit leg."""
        ordered, amount = of.records[name], payment.amount_minor
        entries = (Entry(payment.debtor, "CZK", -amount), Entry(f"in-transit@{of.partition}", "CZK", amount))
        names = payment.payment_id, DEBIT, payment.debtor, payment.creditor
        posting = Posting(*names, entries, DATE, submitted_by=OPERATOR)
        of.records[f"{name} debit"] = self._post(posting, raw, ordered)
        of.records[f"{name} state"] = last_state(self, payment.debtor)
        leg = CreditLeg(payment.payment_id, payment.debtor, payment.creditor, amount, "CZK", DATE)
        of.records[f"{name} leg"] = self.append(
            catalogue.LEDGER_TRANSFERS,
            partition_for(payment.creditor),
            encode_transfer(leg),
            origin=raw,
            source=ordered,
        )

    def _outbox(self, of: Transaction) -> Iterator[None]:
        """Effects: sent, failed, waiting, and sent after a wait."""
        p, records = of.partition, of.records
        debits = {name: self._pay(f"{name}-{of.number}", of).debit for name in ("sent", "failed", "waits", "waited")}
        waited, asked = self._request(debits["waited"])
        waiting = self.wait(waited, p)
        self.committed["outbox"][p] = asked.offset + 1
        yield
        effects: dict[str, EffectRequest] = {}
        for name in ("sent", "failed", "waits"):
            effects[name], records[name] = self._request(debits[name])
        yield
        records["sent result"] = self.decide(effects["sent"], p, EffectState.SENT)
        records["failed result"] = self.decide(effects["failed"], p, EffectState.FAILED, reason="refused")
        records["letter"] = self.append(catalogue.EFFECTS_DEAD_LETTER, p, encode_request(effects["failed"]))
        records["waiting"] = self.wait(effects["waits"], p)
        records["waited result"] = self.decide(waited, p, EffectState.SENT)
        self.append(catalogue.EFFECTS_WAITING, p, None, key=b"waiting/" + waited.effect_id.encode())
        records |= {"waited": asked, "waiting before": waiting}
        yield

    def _pay(self, payment_id: str, of: Transaction) -> Trail:
        """A complete payment before the transaction."""
        return self.pay(payment_id, _account(of.partition, payment_id), _account(of.partition + 1, payment_id), 1)

    def _request(self, posted: Coordinates) -> tuple[EffectRequest, Coordinates]:
        headers = self.at(posted).headers
        self.subscribe(posted, Subscription("event", WEBHOOK))
        origin, source = (Coordinates.decode(header(headers, name) or b"") for name in (ORIGIN, SOURCE))
        effect = request_of(decode_ledger_event(self.at(posted).value or b""), origin, "event", WEBHOOK)
        value = encode_request(effect)
        return effect, self.append(catalogue.EFFECTS_REQUESTS, posted.partition, value, origin=origin, source=source)


def _account(partition: int, owner: str) -> str:
    """An account for one payment, on a partition."""
    names = (f"{owner}-{index}" for index in count())
    return next(name for name in names if partition_for(name) == partition % PARTITIONS)


def _payment(payment_id: str, of: Transaction, to: int) -> Payment:
    debtor, creditor = _account(of.partition, payment_id), _account(to, f"to-{payment_id}")
    return Payment(payment_id, debtor, creditor, _AMOUNT_MINOR, "CZK", SCHEMA_VERSION, None, DATE)


def _transfer(payment: Payment) -> bytes:
    amount = payment.amount_minor
    return encode_transfer(
        Transfer(
            *(payment.payment_id, payment.debtor, payment.creditor, amount, "CZK", amount, "CZK", DATE),
            submitted_by=OPERATOR,
        )
    )
