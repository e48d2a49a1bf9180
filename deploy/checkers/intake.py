"""Outcome of each raw record: I6, and the first links of I3, I7 and I8. Pure.

Feed payments.raw first, then its three outcome topics and the changelogs of ingest and transform in any order. One
byte of flags, a fingerprint and an identity are kept for each raw record, an origin and a fingerprint for each
accepted one. A raw record names its client in a header, which is compared as well.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from deploy.checkers.fingerprints import fingerprint, identity, of_accepted, of_instruction
from deploy.checkers.offsets import (
    NONE,
    Cells,
    Progress,
    came_before,
    check_changelog,
    check_consumed,
    home,
    named,
    parse_place,
    partition_of,
    place,
)
from deploy.checkers.ownership import Submitters
from deploy.checkers.refusals import Gaps, Refusals
from deploy.checkers.terms import shown
from deploy.checkers.validity import Judged, judge
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import (
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_IDENTITIES,
    PAYMENTS_RAW,
    TRANSFORM_PROGRESS,
)
from shared.events.clients import SubmittedBy, decode_submitted_by
from shared.events.codec import decoder
from shared.events.headers import ORIGIN, REPAIR, SOURCE, SUBMITTED_BY, header
from shared.events.payments import (
    DAY_MS,
    Accepted,
    Repeat,
    decode_accepted,
    received_on,
)

SEEN = 1
VALID = 2
OUTCOME = 4
ACCEPTED = 8
REMEMBERED = 16
REPAIRED = 32

TRANSFERRED = 1

RAW_PREFIX = f"{PAYMENTS_RAW}:".encode()
_IDENTITY_PREFIX = b"identity/"
_OFFSET_BYTES = 8

_decode_repeat = decoder(Repeat)


def _print(judged: Judged, value: bytes) -> int:
    """Return the fingerprint of a raw record: of its fields if it is valid, else of its bytes."""
    instruction = judged.instruction
    return fingerprint(value) if instruction is None else of_instruction(instruction)


def _day(time_ms: int) -> int:
    """A day counted from 1970-01-01 UTC, in 16 bits: the last one stands for all from 2149-06-06 on."""
    return max(0, min(time_ms // DAY_MS, 2**16 - 1))


class Intake:
    """The records of ingest's input and outputs."""

    def __init__(self, findings: Findings, submitters: Submitters, identity_window: int, partitions: int) -> None:
        self._findings = findings
        self._submitters = submitters
        self._partitions = partitions
        self._identity_window = identity_window
        self._prints = Cells("Q")
        self._days = Cells("H")  # of receipt; see `_day`
        self._identities = Cells("Q")
        self._submitted = Cells("I")  # by raw place, the number of who its header names
        self._refusals = Refusals(findings, partitions)
        self.gaps = Gaps()  # in payments.raw
        self.flags = Cells("B")  # by raw place, SEEN and what follows it above
        self.accepted_origin = Cells("q", NONE)  # by place in payments.accepted, the raw place
        self.accepted_print = Cells("Q")  # by the same place, of what its transfer must say
        self.accepted_flags = Cells("B")  # by the same place, TRANSFERRED
        self.ingest_changelog = Progress(findings, PAYMENTS_IDENTITIES)
        self.transform_changelog = Progress(findings, TRANSFORM_PROGRESS)
        self.records_in = 0
        self.accepted = 0
        self.deduplicated = 0
        self.dead_lettered = 0

    def feed_raw(self, partition: int, records: list[Record]) -> None:
        self.records_in += len(records)
        self.gaps.take(partition, records)
        for record in records:
            at = place(partition, record.offset)
            self._days[at] = _day(record.timestamp_ms)
            judged = judge(record.value, self._partitions)
            self.flags[at] = SEEN if judged.faults else SEEN | VALID
            self._prints[at] = _print(judged, record.value or b"")
            self._submitted[at] = self._submitters.number(decode_submitted_by(header(record.headers, SUBMITTED_BY)))

    def feed_accepted(self, partition: int, records: list[Record]) -> None:
        self.accepted += len(records)
        for record in records:
            where = named(PAYMENTS_ACCEPTED, place(partition, record.offset))
            origin = self._origin(record, where)
            try:
                instruction, _ = decode_accepted(record.value or b"")
            except msgspec.DecodeError as error:
                self._findings.add(Kind.UNREADABLE, where, str(error))
                continue
            at = place(partition, record.offset)
            self.accepted_origin[at] = origin
            self.accepted_print[at] = of_accepted(instruction, received_on(instruction, record.timestamp_ms))
            self._check_partition(partition, home(instruction.debtor, self._partitions), where)
            if origin == NONE:
                continue
            self._identities[origin] = identity(instruction.debtor, instruction.payment_id)
            self.flags[origin] |= ACCEPTED if header(record.headers, REPAIR) is None else ACCEPTED | REPAIRED
            self._check_valid(origin, where)
            if self._differs(instruction, origin):
                self._findings.add(
                    Kind.ALTERED_OUTCOME, where, f"differs from {named(PAYMENTS_RAW, origin)}, its raw record"
                )
            self._check_submitted(instruction.submitted_by, origin, where)

    def _differs(self, accepted: Accepted, origin: int) -> bool:
        """Whether an accepted record says otherwise than its raw record, where that can be compared."""
        flags = self.flags[origin]
        if flags & VALID and self._prints[origin] != of_instruction(accepted):
            return True
        if not flags & SEEN or accepted.received_at_ms is None:
            return False
        return _day(accepted.received_at_ms) != self._days[origin]

    def _check_submitted(self, by: SubmittedBy | None, origin: int, where: str) -> None:
        """Check whom an outcome names as its submitter; no name is right only where the raw record needs no client."""
        right = self._submitters.numbered(self._submitted[origin])
        if by != right and (by is not None or self._submitters.counts_at(origin)):
            detail = f"submitted by {shown(by)}, and {named(PAYMENTS_RAW, origin)} by {shown(right)}"
            self._findings.add(Kind.ALTERED_OUTCOME, where, detail)

    def _check_valid(self, origin: int, where: str) -> None:
        if origin != NONE and self.flags[origin] & (SEEN | VALID) == SEEN:
            self._findings.add(Kind.WRONG_ACCEPTANCE, where, f"{named(PAYMENTS_RAW, origin)} is not a valid payment")

    def feed_deduplicated(self, partition: int, records: list[Record]) -> None:
        self.deduplicated += len(records)
        for record in records:
            where = named(PAYMENTS_DEDUPLICATED, place(partition, record.offset))
            origin = self._origin(record, where)
            try:
                repeat = _decode_repeat(record.value or b"")
            except msgspec.DecodeError as error:
                self._findings.add(Kind.UNREADABLE, where, str(error))
                continue
            self._check_valid(origin, where)
            fault = self._fault_of_repeat(repeat, origin, repaired=header(record.headers, REPAIR) is not None)
            if fault:
                self._findings.add(Kind.WRONG_FIRST, where, fault)

    def _fault_of_repeat(self, repeat: Repeat, origin: int, *, repaired: bool) -> str | None:
        """Describe why this is not a repeat, or None. A payment wrongly dropped as one would be lost money."""
        first = parse_place(repeat.first.encode(), RAW_PREFIX)
        if first == NONE or not self.flags[first] & ACCEPTED:
            return f"its first one, {repeat.first}, was not accepted"
        if self._identities[first] != identity(repeat.debtor, repeat.payment_id):
            return f"its first one, {repeat.first}, is another payment"
        if origin == NONE:
            return None
        if not came_before(first, origin, repaired=repaired):
            return f"its first one, {repeat.first}, did not come before {named(PAYMENTS_RAW, origin)}"
        both = self.flags[first] & self.flags[origin] & VALID
        if both and self._prints[first] != self._prints[origin]:
            return f"{named(PAYMENTS_RAW, origin)} says something else than its first one, {repeat.first}"
        return None

    def feed_dead_letter(self, partition: int, records: list[Record]) -> None:
        self.dead_lettered += len(records)
        for record in records:
            where = named(PAYMENTS_DEAD_LETTER, place(partition, record.offset))
            origin = self._origin(record, where)
            if origin == NONE:
                continue
            judged = judge(record.value, self._partitions)
            said = _print(judged, record.value or b"")
            if said != self._prints[origin]:
                self._findings.add(Kind.ALTERED_OUTCOME, where, f"is not what {named(PAYMENTS_RAW, origin)} holds")
            # Sent again, it counts for this client
            self._check_submitted(decode_submitted_by(header(record.headers, SUBMITTED_BY)), origin, where)
            self._refusals.check(record, judged, origin, said, where)

    def feed_identities(self, partition: int, records: list[Record]) -> None:
        """Take ingest's changelog. The value of an identity ends with the offset of its raw record."""
        self.ingest_changelog.feed(partition, records)
        for record in records:
            if record.value is not None and (record.key or b"").startswith(_IDENTITY_PREFIX):
                at = place(partition, int.from_bytes(record.value[-_OFFSET_BYTES:], "big"))
                if self.flags[at] & SEEN:
                    self.flags[at] |= REMEMBERED

    def _origin(self, record: Record, where: str) -> int:
        """Return the raw place of an outcome, which is its origin and its source; NONE if there is no such record."""
        origin = parse_place(header(record.headers, ORIGIN), RAW_PREFIX)
        source = parse_place(header(record.headers, SOURCE), RAW_PREFIX)
        if origin != source:
            self._findings.add(Kind.ORIGIN_MISMATCH, where, "origin and source name different raw records")
        if origin == NONE or not self.flags[origin] & SEEN:
            text = (header(record.headers, ORIGIN) or b"no origin").decode(errors="replace")
            self._findings.add(Kind.SOURCE_MISSING, where, f"made from {text}, which is not a committed record")
            return NONE
        self._check_partition(record.partition, partition_of(origin), where)
        if self.flags[origin] & OUTCOME:
            self._findings.add(Kind.TWO_OUTCOMES, where, f"{named(PAYMENTS_RAW, origin)} has another outcome")
        self.flags[origin] |= OUTCOME
        return origin

    def _check_partition(self, partition: int, right: int, where: str) -> None:
        if partition != right:
            self._findings.add(Kind.WRONG_PARTITION, where, f"belongs on partition {right}")

    def identity_of(self, origin: int) -> int:
        """Return the identity of the payment accepted from that raw place; 0 where there is none."""
        return 0 if origin == NONE else self._identities[origin]

    def is_accepted(self, origin: int) -> bool:
        return origin != NONE and bool(self.flags[origin] & ACCEPTED)

    def finish(self, committed_ingest: Mapping[int, int], committed_transform: Mapping[int, int]) -> None:
        """Run the final checks, given ingest's and transform's committed offsets on their inputs, by partition."""
        for at, flags in self.flags.filled():
            if flags & SEEN:
                check_consumed(self._findings, PAYMENTS_RAW, at, bool(flags & OUTCOME), committed_ingest)
                check_changelog(self._findings, PAYMENTS_RAW, at, self.ingest_changelog, committed_ingest)
                if not flags & OUTCOME:
                    self._findings.add(Kind.NO_OUTCOME, named(PAYMENTS_RAW, at), "in none of the three outcome topics")
        for at, _ in self.accepted_print.filled():
            done = bool(self.accepted_flags[at] & TRANSFERRED)
            check_consumed(self._findings, PAYMENTS_ACCEPTED, at, done, committed_transform)
            check_changelog(self._findings, PAYMENTS_ACCEPTED, at, self.transform_changelog, committed_transform)
        self._check_identities()
        self._refusals.finish(self._identities.filled(), self._prints)
        for partition, gaps in self.gaps.found().items():
            for gap in gaps:
                detail = f"offsets up to {gap.stop - 1} have no record, marker or aborted record"
                self._findings.add(Kind.RAW_MISSING, named(PAYMENTS_RAW, place(partition, gap.start)), detail)

    def _check_identities(self) -> None:
        """Check that no identity was accepted twice within ingest's window, in accepted records of the partition."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for at, _ in self.accepted_print.filled():
            places[partition_of(at)].append(at)
        for accepted in places.values():
            known = [self.identity_of(self.accepted_origin[at]) for at in accepted]
            order = sorted(range(len(known)), key=known.__getitem__)
            for earlier, later in pairwise(order):
                same = known[earlier] == known[later] != 0
                if same and later - earlier <= self._identity_window:
                    where = named(PAYMENTS_ACCEPTED, accepted[later])
                    first = named(PAYMENTS_ACCEPTED, accepted[earlier])
                    self._findings.add(Kind.ACCEPTED_TWICE, where, f"the same identity as {first}")
            self._check_remembered([self.accepted_origin[at] for at in accepted])

    def _check_remembered(self, origins: list[int]) -> None:
        """Check that ingest's changelog has the identities of the payments that were accepted last on a partition.

        Older ones than the first that it has may have left ingest's window, whatever its capacity is. So may a repaired
        one: its identity can be as old as its raw record.
        """
        flags = [0 if origin == NONE else self.flags[origin] for origin in origins]
        remembered = [number for number, of in enumerate(flags) if of & REMEMBERED]
        begin = max(remembered[0] if remembered else len(origins), len(origins) - self._identity_window)
        lost = [
            at
            for at, of in zip(origins[begin:], flags[begin:], strict=True)
            if of & (ACCEPTED | REMEMBERED | REPAIRED) == ACCEPTED and self.ingest_changelog.passes(at)
        ]
        # Where a payment was sent again and accepted, that is the violation: its later identity is remembered
        again = {self.identity_of(origins[number]) for number in remembered} if lost else set()
        for at in lost:
            if self.identity_of(at) not in again:
                detail = f"accepted, and {PAYMENTS_IDENTITIES} does not have its identity: it would be accepted again"
                self._findings.add(Kind.TORN_CHANGELOG, named(PAYMENTS_RAW, at), detail)
