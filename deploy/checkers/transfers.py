"""ledger.transfers: one record for each accepted one, one credit leg for each debit (I3, I4, I8). Pure."""

from collections.abc import Mapping
from functools import cached_property

from deploy.checkers.fingerprints import (
    Net,
    fingerprint,
    identity,
    of_account_event,
    of_credit_leg,
    of_expected_debit,
    of_reversing,
    of_transfer,
)
from deploy.checkers.intake import RAW_PREFIX, TRANSFERRED, Intake
from deploy.checkers.offsets import NONE, Cells, home, named, offset_of, parse_place, partition_of, readable
from deploy.checkers.ownership import Submitters
from deploy.checkers.pricing import Pricing
from deploy.checkers.terms import changes, shown, terms_at_first
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED
from shared.events.clients import SubmittedBy
from shared.events.headers import ORIGIN, SOURCE, header
from shared.events.postings import Decline
from shared.events.reference import MINOR_DIGITS
from shared.events.transfers import AccountClosed, AccountOpened, CreditLeg, Transfer, TransferReversal, decode_transfer

TRANSFER = 1
REVERSAL = 2
LEG = 4
ACCOUNT = 8
TO_DECLINE = 16
POSTED = 32
DEBITED = 64
OF_INSTALLATION = 128
OPENING = 256
"""With ACCOUNT: an instruction of payments.raw, not an operator's command. It has an outcome in any case."""

TRANSFERS_PREFIX = f"{LEDGER_TRANSFERS}:".encode()
_ACCEPTED_PREFIX = f"{PAYMENTS_ACCEPTED}:".encode()
_CURRENCIES = ("", *sorted(MINOR_DIGITS))
_CURRENCY_NUMBERS = {currency: number for number, currency in enumerate(_CURRENCIES)}
_COST_MAX = 2**54  # two amounts; a transfer that costs more is found by its price


def _of_date(text: str) -> int:
    return fingerprint(text) & 0xFFFFFFFF


def _text(value: bytes | None) -> str:
    return "nothing that it names" if value is None else value.decode(errors="replace")


class Transfers:
    """The records of ledger.transfers, by their place.

    None is expected at or beyond the end offsets, which name every partition.

    Attributes:
        partitions: of each topic.
        reversed: identities that some reversal names. The postings' checker keeps their entries and creditor here, None
            till then.
        reverses: by the place of a reversal, the identity that it names.
        commands: by place, in the order of each partition, the records that open or close accounts.
        opened_plainly: accounts that some operator's command opens on the terms of an account without any event.
    """

    def __init__(
        self,
        findings: Findings,
        intake: Intake,
        submitters: Submitters,
        pricing: Pricing,
        end_offsets: Mapping[int, int],
    ) -> None:
        self._findings = findings
        self._submitters = submitters
        self._pricing = pricing
        self.partitions = len(end_offsets)
        self._intake = intake
        self._end_offsets = end_offsets
        self.flags = Cells("H")  # what each is, and POSTED, DEBITED and OF_INSTALLATION once its posting was fed
        self.origin = Cells("q", NONE)  # raw place; NONE for operators' commands
        self._submitted = Cells("I")  # number of the client for whom it counts
        self.prints = Cells("Q")  # of what its posting or decline must say; 0 where the record does not determine it
        self._dates = Cells("I")  # of a payment, a reversal or an opening, 32 bits of its value date's fingerprint
        self._costs = Cells("Q")  # of a transfer, amount and fee, and the number of their currency in the last 8 bits
        self.leg_at = Cells("q", NONE)  # by the place of a debit leg's record, the place of the credit leg that it sent
        self.leg_print = Cells("Q")  # what that credit leg says
        self.reversed: dict[int, tuple[Net, str] | None] = {}
        self.reverses: dict[int, int] = {}
        self.commands: dict[int, AccountOpened | AccountClosed] = {}
        self.opened_plainly: set[str] = set()
        self.records = 0

    def feed(self, partition: int, records: list[Record]) -> None:
        self.records += len(records)
        for record, at, where, event in readable(self._findings, LEDGER_TRANSFERS, partition, records, decode_transfer):
            match event:
                case CreditLeg():
                    self._credit_leg(event, record, at, where)
                    account = event.creditor
                case AccountOpened() | AccountClosed():
                    self._account_event(event, record, at, where)
                    account = event.account
                case _:
                    self._transfer(event, record, at, where)
                    account = event.debtor
            right = home(account, self.partitions)
            if right != partition:
                self._findings.add(Kind.WRONG_PARTITION, where, f"{account} lives on partition {right}")

    def _account_event(self, event: AccountOpened | AccountClosed, record: Record, at: int, where: str) -> None:
        self.flags[at] = ACCOUNT
        self.prints[at] = of_account_event(event)
        self.commands[at] = event
        if isinstance(event, AccountOpened):
            self._dates[at] = _of_date(event.value_date)
        if header(record.headers, ORIGIN) is None:
            if not changes(terms_at_first(event.account), event):
                self.opened_plainly.add(event.account)
            return
        if isinstance(event, AccountClosed):
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "an account is closed by an operator only")
            return
        self.flags[at] |= OPENING
        self._made_from_accepted(event, record, at, where)

    def _transfer(self, event: Transfer | TransferReversal, record: Record, at: int, where: str) -> None:
        self._dates[at] = _of_date(event.value_date)
        if isinstance(event, Transfer):
            cost_minor = min(max(event.amount_minor + event.fee_minor, 0), _COST_MAX)
            self._costs[at] = cost_minor << 8 | _CURRENCY_NUMBERS.get(event.currency, 0)
            if event.decline is None:
                self.flags[at] = TRANSFER
                self.prints[at] = of_expected_debit(event, record.partition)
            else:
                self.flags[at] = TRANSFER | TO_DECLINE
                self.prints[at] = fingerprint(event.decline)
            self._pricing.check(event, record.timestamp_ms, where)
        else:
            self.flags[at] = REVERSAL
            self.prints[at] = of_reversing(event)
            self.reverses[at] = original = identity(event.debtor, event.reverses)
            self.reversed[original] = None
        self._made_from_accepted(event, record, at, where)

    def _made_from_accepted(
        self, event: Transfer | TransferReversal | AccountOpened, record: Record, at: int, where: str
    ) -> None:
        """Compare it with the accepted record that it was made from, and note for whom it counts."""
        origin = parse_place(header(record.headers, ORIGIN), RAW_PREFIX)
        self.origin[at] = origin
        self._submitted[at] = self._submitters.number(self._submitters.effective(origin, event.submitted_by))
        source = parse_place(header(record.headers, SOURCE), _ACCEPTED_PREFIX)
        if source == NONE or not self._intake.accepted_print[source]:
            made_from = _text(header(record.headers, SOURCE))
            self._findings.add(Kind.SOURCE_MISSING, where, f"made from {made_from}, which is not a committed record")
            return
        if origin == NONE or origin != self._intake.accepted_origin[source]:
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "another origin than its source has")
        flags = self._intake.accepted_flags[source]
        if flags & TRANSFERRED:
            self._findings.add(Kind.DUPLICATE_TRANSFER, where, f"the second one of {named(PAYMENTS_ACCEPTED, source)}")
        self._intake.accepted_flags[source] = flags | TRANSFERRED
        said = of_transfer(event)
        if said != self._intake.accepted_print[source]:
            self._findings.add(Kind.ALTERED_TRANSFER, where, f"differs from {named(PAYMENTS_ACCEPTED, source)}")

    def _credit_leg(self, leg: CreditLeg, record: Record, at: int, where: str) -> None:
        self.flags[at] = LEG
        self.origin[at] = parse_place(header(record.headers, ORIGIN), RAW_PREFIX)
        self.prints[at] = of_credit_leg(leg)
        source = parse_place(header(record.headers, SOURCE), TRANSFERS_PREFIX)
        # A source that cannot be there must not make the arrays grow
        if source == NONE or offset_of(source) >= self._end_offsets.get(partition_of(source), 0):
            made_from = _text(header(record.headers, SOURCE))
            self._findings.add(Kind.SOURCE_MISSING, where, f"made from {made_from}, which is not a committed record")
            return
        if self.leg_at[source] != NONE:
            self._findings.add(Kind.DUPLICATE_CREDIT_LEG, where, f"the second one of {named(LEDGER_TRANSFERS, source)}")
            return
        self.leg_at[source] = at
        self.leg_print[source] = self.prints[at]

    def submitted_by(self, at: int) -> SubmittedBy | None:
        """Return the client for whom a record counts; None for operators' commands."""
        return self._submitters.numbered(self._submitted[at])

    def check_submitted(self, by: SubmittedBy | None, source: int, where: str) -> None:
        """Check that an outcome names for whom its source counts; one that does not need a client may name none."""
        right = self.submitted_by(source)
        if by != right and (by is not None or self._submitters.counts_at(self.origin[source])):
            detail = f"submitted by {shown(by)}, and {named(LEDGER_TRANSFERS, source)} counts for {shown(right)}"
            self._findings.add(Kind.ALTERED_POSTING, where, detail)

    def check_decline(self, decline: Decline, source: int, where: str) -> None:
        """Check the day of a decline, and whether it is one of a reversal."""
        flags = self.flags[source]
        if flags & (TRANSFER | REVERSAL | ACCOUNT) and self._dates[source] != _of_date(decline.value_date):
            detail = f"its value date {decline.value_date} is not that of {named(LEDGER_TRANSFERS, source)}"
            self._findings.add(Kind.ALTERED_POSTING, where, detail)
        if decline.reversal != bool(flags & REVERSAL):
            self._findings.add(Kind.ALTERED_POSTING, where, f"its reversal is {decline.reversal}")

    def may_be_former(self, at: int) -> bool:
        """Whether a former ledger may have decided a command: payments of any partition need no client.

        No ledger was at work when ownership came into force. So no former one decided what follows a payment that needs
        a client. No former ledger decided on openings of payments.raw.
        """
        return (
            not self.flags[at] & OPENING
            and any(self._submitters.counts_from(number) > 0 for number in range(self.partitions))
            and at < self._first_owned.get(partition_of(at), at + 1)
        )

    @cached_property
    def _first_owned(self) -> dict[int, int]:
        """By partition, the place of the first record whose payment needs a client. Read it when all were fed."""
        found: dict[int, int] = {}
        for at, origin in self.origin.filled():
            if self._submitters.counts_at(origin):
                found.setdefault(partition_of(at), at)
        return found

    def cost(self, at: int) -> tuple[int, str]:
        """Return what a transfer takes from its debtor, in minor units, and the currency."""
        packed = self._costs[at]
        return packed >> 8, _CURRENCIES[packed & 0xFF]

    def source_of(self, record: Record, where: str) -> int:
        """Return the place of the record that another topic's record names as its source; NONE if there is none."""
        value = header(record.headers, SOURCE)
        source = parse_place(value, TRANSFERS_PREFIX)
        if source == NONE or not self.flags[source]:
            made_from = _text(value)
            self._findings.add(Kind.SOURCE_MISSING, where, f"made from {made_from}, which is not a committed record")
            return NONE
        return source

    def finish(self) -> None:
        """Check the credit legs' sources, which may be read after them: partitions come in any order."""
        for source, at in self.leg_at.filled():
            where = named(LEDGER_TRANSFERS, at)
            from_where = named(LEDGER_TRANSFERS, source)
            flags = self.flags[source]
            if not flags:
                self._findings.add(Kind.SOURCE_MISSING, where, f"made from {from_where}, not a committed record")
            elif self.origin[at] != self.origin[source]:
                self._findings.add(Kind.ORIGIN_MISMATCH, where, f"another origin than {from_where} has")
            if not flags & DEBITED:
                self._findings.add(Kind.ORPHAN_CREDIT_LEG, where, f"{from_where} sent it, but no debit was posted")
