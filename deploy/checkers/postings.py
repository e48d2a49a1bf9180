"""The legs that were posted: I2, I3, I4 and the torn ones of I7. Pure. Feed ledger.postings last."""

from collections.abc import Mapping

from deploy.checkers.account_events import AccountEvents
from deploy.checkers.books import Books
from deploy.checkers.cover import Cover
from deploy.checkers.fingerprints import (
    Net,
    identity,
    net_of,
    of_debit,
    of_leg_posted,
    of_leg_sent,
    of_reported_decline,
    of_reported_posting,
    of_reversing,
    opposites,
)
from deploy.checkers.intake import ACCEPTED, RAW_PREFIX, Intake
from deploy.checkers.offsets import (
    NONE,
    Cells,
    check_changelog,
    check_consumed,
    home,
    named,
    offset_of,
    parse_place,
    partition_of,
    readable,
)
from deploy.checkers.subscribed import Subscribed
from deploy.checkers.terms import shown
from deploy.checkers.transfers import (
    ACCOUNT,
    DEBITED,
    LEG,
    OF_INSTALLATION,
    OPENING,
    POSTED,
    REVERSAL,
    TO_DECLINE,
    TRANSFER,
    Transfers,
)
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.headers import ORIGIN, REPAIR, header
from shared.events.postings import CREDIT, DEBIT, OF_ORIGIN, Decline, LedgerEvent, Posting, decode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened

_COUNT_MAX = 255


class Postings:
    """The records of ledger.postings.

    Attributes:
        debits, credits, declines: how many of each.
        torn: postings and declines whose credit leg or changelog write is absent.
        reports: by place in ledger.transfers, what an effect may report of the posting or decline; see `of_request`.
    """

    def __init__(
        self,
        findings: Findings,
        intake: Intake,
        transfers: Transfers,
        books: Books,
        cover: Cover,
        subscribed: Subscribed,
    ) -> None:
        self._findings = findings
        self._intake = intake
        self._transfers = transfers
        self._books = books
        self._cover = cover
        self._subscribed = subscribed
        self._account_events = AccountEvents(findings, transfers, books, cover)
        self._firsts = Cells("B")
        self._credits = Cells("B")
        self._debited = Cells("B")
        self._early: list[tuple[Posting, Net, int, str]] = []  # reversals without a posting that they could reverse
        self._repaired: dict[int, int] = {}  # by identity, the source of a payment's debit that a repair wrote
        self.reports = Cells("Q")
        self.records = 0
        self.debits = 0
        self.credits = 0
        self.declines = 0
        self.torn = 0

    def feed(self, partition: int, records: list[Record]) -> None:
        self.records += len(records)
        for record, _, where, event in readable(
            self._findings, LEDGER_POSTINGS, partition, records, decode_ledger_event
        ):
            source = self._source(record, where)
            match event:
                case AccountOpened() | AccountClosed():
                    self._account_event(event, record, source, where)
                case Decline():
                    self._decline(event, record, source, where)
                case Posting():
                    self._posting(event, record, source, where)
            if source != NONE:
                self._transfers.flags[source] |= POSTED | _form_of(event)

    def _source(self, record: Record, where: str) -> int:
        """Return the place in ledger.transfers that it was made from; NONE if there is no such record."""
        source = self._transfers.source_of(record, where)
        if source != NONE and partition_of(source) != record.partition:
            self._findings.add(Kind.WRONG_PARTITION, where, f"made from a record of partition {partition_of(source)}")
        return source

    def _account_event(self, event: AccountOpened | AccountClosed, record: Record, source: int, where: str) -> None:
        self._check_account(event.account, record.partition, where)
        self._account_events.take(event, record, source, where)
        if source != NONE and self._transfers.flags[source] & OPENING:
            self._count(self._firsts, self._origin(record, source, where), Kind.DUPLICATE_ACCOUNT_EVENT, where)

    def _decline(self, event: Decline, record: Record, source: int, where: str) -> None:
        self.declines += 1
        if not self._account_events.decline(event, record, source, where):
            self._decline_of_payment(event, record, source, where)
        if source != NONE:
            self._transfers.check_submitted(event.submitted_by, source, where)
            self._transfers.check_decline(event, source, where)
            self._cover.decline(event, record, source, where)
            self._subscribed.ask(event, event.debtor, source, record.timestamp_ms, where)
            self.reports[source] = of_reported_decline(event)
            self.torn += self._lacks_changelog(None, source, where)

    def _decline_of_payment(self, event: Decline, record: Record, source: int, where: str) -> None:
        """Check a decline of what payments.raw holds: a payment, a reversal or an opening."""
        origin = self._origin(record, source, where)
        self._count(self._firsts, origin, Kind.DUPLICATE_DECLINE, where)
        right = self._intake.identity_of(origin)
        if right and right != identity(event.debtor, event.payment_id):
            self._findings.add(Kind.ALTERED_POSTING, where, f"{named(PAYMENTS_RAW, origin)} is another payment")
        elif source != NONE and not self._transfers.flags[source] & (TRANSFER | REVERSAL | OPENING):
            self._findings.add(Kind.ALTERED_POSTING, where, f"{named(LEDGER_TRANSFERS, source)} is not a transfer")
        elif source != NONE and event.opening != bool(self._transfers.flags[source] & OPENING):
            self._findings.add(Kind.ALTERED_POSTING, where, f"its opening is {event.opening}")

    def _origin(self, record: Record, source: int, where: str) -> int:
        """Return the raw place of a leg or decline; NONE where no payment was accepted."""
        value = header(record.headers, ORIGIN)
        origin = parse_place(value, RAW_PREFIX)
        if source != NONE and origin != self._transfers.origin[source]:
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "another origin than its source has")
        if not self._intake.is_accepted(origin):
            text = "no raw record" if value is None else value.decode(errors="replace")
            self._findings.add(Kind.ORPHAN_POSTING, where, f"posted for {text}, which was not accepted")
            return NONE
        return origin

    def _count(self, counts: Cells, origin: int, kind: Kind, where: str) -> None:
        if origin == NONE:
            return
        count = counts[origin]
        counts[origin] = min(count + 1, _COUNT_MAX)
        if count:
            done = "credited" if counts is self._credits else "debited, declined or opened"
            self._findings.add(kind, where, f"{named(PAYMENTS_RAW, origin)} was {done} before")

    def _posting(self, posting: Posting, record: Record, source: int, where: str) -> None:
        net = net_of(posting.entries)
        self._check_balanced(posting, record.partition, where)
        self._books.fold(posting.entries)
        for entry in posting.entries if self._transfers.opened_plainly else ():
            self._account_events.note_state(entry.account, source)
        origin = self._origin(record, source, where)
        if source != NONE:
            account = posting.debtor if posting.leg == DEBIT else posting.creditor
            self._subscribed.ask(posting, account, source, record.timestamp_ms, where)
            self.reports[source] = of_reported_posting(posting, net)
        if posting.leg == DEBIT:
            self.debits += 1
            self._count(self._firsts, origin, Kind.DUPLICATE_DEBIT, where)
            if origin != NONE:
                self._debited[origin] = 1
            if source != NONE:
                self._transfers.check_submitted(posting.submitted_by, source, where)
                self._cover.debit(posting, record, source, where)
                self._check_debit(posting, net, source, where, repaired=header(record.headers, REPAIR) is not None)
                self._check_torn(posting, net, source, where)
        elif posting.leg == CREDIT:
            self.credits += 1
            self._count(self._credits, origin, Kind.DUPLICATE_CREDIT, where)
            if source != NONE:
                self._cover.credit(posting, record, source, where)
                self._check_credit(posting, net, source, where)
                credited = any(entry.account == posting.creditor for entry in posting.entries)  # else suspense
                self.torn += self._lacks_changelog(posting.creditor if credited else None, source, where)
        else:
            self._findings.add(Kind.UNREADABLE, where, f"its leg is {posting.leg!r}")

    def _check_balanced(self, posting: Posting, partition: int, where: str) -> None:
        sums: dict[str, int] = {}
        for entry in posting.entries:
            sums[entry.currency] = sums.get(entry.currency, 0) + entry.amount_minor
            self._check_account(entry.account, partition, where)
        for currency, amount_minor in sums.items():
            if amount_minor:
                self._findings.add(Kind.UNBALANCED, where, f"its {currency} entries sum to {amount_minor}")

    def _check_account(self, account: str, partition: int, where: str) -> None:
        right = home(account, self._transfers.partitions)
        if right != partition:
            self._findings.add(Kind.FOREIGN_ACCOUNT, where, f"{account} lives on partition {right}")

    def _check_debit(self, posting: Posting, net: Net, source: int, where: str, *, repaired: bool) -> None:
        flags = self._transfers.flags[source]
        self._transfers.flags[source] = flags | DEBITED
        ordered = named(LEDGER_TRANSFERS, source)
        if flags & REVERSAL:
            if self._transfers.prints[source] != of_reversing(posting):
                self._findings.add(Kind.ALTERED_POSTING, where, f"reverses something else than {ordered} orders")
            if self._transfers.reversed.get(identity(posting.debtor, posting.reverses or "")) is None:
                self._early.append((posting, net, source, where))
            else:
                self._check_reversal(posting, net, source, where)
            return
        if not flags & TRANSFER or flags & TO_DECLINE or posting.reversal or posting.reverses is not None:
            self._findings.add(Kind.ALTERED_POSTING, where, f"a debit that {ordered} does not order")
        elif self._transfers.prints[source] != of_debit(posting, net):
            self._findings.add(Kind.ALTERED_POSTING, where, f"books something else than {ordered} orders")
        known = identity(posting.debtor, posting.payment_id)
        if known in self._transfers.reversed:
            self._transfers.reversed[known] = net, posting.creditor
            if repaired:
                self._repaired[known] = source

    def _check_reversal(self, posting: Posting, net: Net, source: int, where: str) -> None:
        original = identity(posting.debtor, posting.reverses or "")
        kept = self._transfers.reversed.get(original)
        if not posting.reversal or kept is None:
            self._findings.add(Kind.WRONG_REVERSAL, where, "no posting that it could reverse, or not again")
        elif net not in opposites(kept[0], posting.debtor, partition_of(source)) or posting.creditor != kept[1]:
            self._findings.add(Kind.WRONG_REVERSAL, where, "not the opposite of what it reverses")
        else:
            self._transfers.reversed[original] = None

    def _check_early(self) -> None:
        """Judge the reversals that came before what they could reverse: only a repair writes it behind them."""
        for posting, net, source, where in self._early:
            booked = self._repaired.get(identity(posting.debtor, posting.reverses or ""))
            if booked is not None and booked < source:
                self._check_reversal(posting, net, source, where)
            else:
                self._findings.add(Kind.WRONG_REVERSAL, where, "no posting that it could reverse, or not again")

    def _check_torn(self, posting: Posting, net: Net, source: int, where: str) -> None:
        """Check that the rest of the debit's transaction is there: the credit leg, and the changelog's writes."""
        torn = False
        if self._transfers.leg_at[source] == NONE:
            self._findings.add(Kind.TORN_CREDIT_LEG, where, "its credit leg is not in ledger.transfers")
            torn = True
        elif self._transfers.leg_print[source] != of_leg_sent(posting, net, partition_of(source)):
            leg = named(LEDGER_TRANSFERS, self._transfers.leg_at[source])
            self._findings.add(Kind.ALTERED_CREDIT_LEG, leg, f"is not the credit leg of {where}")
        self.torn += self._lacks_changelog(posting.debtor, source, where) or torn

    def _lacks_changelog(self, account: str | None, source: int, where: str) -> bool:
        """Whether a write to the changelog is absent that a posting or decline was committed with."""
        missing = self._books.missing_write(account, partition_of(source), offset_of(source))
        if missing:
            self._findings.add(Kind.TORN_CHANGELOG, where, missing)
        return missing is not None

    def _check_credit(self, posting: Posting, net: Net, source: int, where: str) -> None:
        ordered = named(LEDGER_TRANSFERS, source)
        if posting.submitted_by is not None:
            self._findings.add(Kind.ALTERED_POSTING, where, f"submitted by {shown(posting.submitted_by)}: no credit is")
        if (posting.fee_minor, posting.rate, posting.reference, posting.reverses) != (0, None, "", None):
            self._findings.add(
                Kind.ALTERED_POSTING, where, "a credit has no price, no text, and reverses nothing itself"
            )
        if not self._transfers.flags[source] & LEG:
            self._findings.add(Kind.ALTERED_POSTING, where, f"a credit that {ordered} does not order")
        elif self._transfers.prints[source] != of_leg_posted(posting, net, partition_of(source)):
            self._findings.add(Kind.ALTERED_POSTING, where, f"books something else than {ordered} orders")

    def finish(self, committed_ledger: Mapping[int, int]) -> None:
        """Run the final checks, given the ledger's committed offsets on ledger.transfers by partition."""
        self._check_early()
        for at, flags in self._intake.flags.filled():
            if not flags & ACCEPTED:
                continue
            where = named(PAYMENTS_RAW, at)
            debited = self._debited[at]
            if not self._firsts[at]:
                self._findings.add(Kind.LOST, where, "accepted, but neither debited, declined nor opened")
            if debited and not self._credits[at]:
                self._findings.add(Kind.CREDIT_MISSING, where, "debited, but its creditor was not credited")
            if self._credits[at] and not debited:
                self._findings.add(Kind.ORPHAN_CREDIT, where, "credited, but its debtor was not debited")
        for at, flags in self._transfers.flags.filled():
            posted = bool(flags & POSTED)
            # An operator's command that changes nothing is not posted
            if posted or not flags & ACCOUNT or flags & OPENING:
                check_consumed(self._findings, LEDGER_TRANSFERS, at, posted, committed_ledger)
            if not posted:
                check_changelog(self._findings, LEDGER_TRANSFERS, at, self._books.progress, committed_ledger)
        self._account_events.finish(committed_ledger)


def _form_of(event: LedgerEvent) -> int:
    """Return the flag of an event whose effects' ids have the installation's id."""
    by = event.notified_by if isinstance(event, Posting | Decline) else None
    return 0 if by is None or by.effect_ids == OF_ORIGIN else OF_INSTALLATION
