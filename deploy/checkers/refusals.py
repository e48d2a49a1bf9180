"""The dead letters: each refusal has a reason that its record gives (I6). Pure.

The reason `too_large` is not judged. It follows from the limits of the topics at that time, which no record states.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from deploy.checkers.fingerprints import identity
from deploy.checkers.offsets import Cells, came_before, home, partition_of
from deploy.checkers.validity import Judged
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.dead_letters import Reason
from shared.events.headers import REASON, REPAIR, header


class _Conflict(NamedTuple):
    """A record that was refused for the identity of another one."""

    origin: int  # raw place
    said: int  # fingerprint
    where: str  # of its dead letter
    repaired: bool


class Refusals:
    """Judges each dead letter; conflicts of identity at the end, when the accepted payments are known."""

    def __init__(self, findings: Findings, partitions: int) -> None:
        self._findings = findings
        self._partitions = partitions
        self._conflicts: defaultdict[int, list[_Conflict]] = defaultdict(list)  # by identity

    def check(self, record: Record, judged: Judged, origin: int, said: int, where: str) -> None:
        """Check one dead letter.

        Args:
            judged: what its value is by the rules.
            origin: raw place of its record, and `said` its fingerprint.
        """
        reason = (header(record.headers, REASON) or b"").decode(errors="replace")
        if reason == Reason.TOO_LARGE:
            return
        instruction = judged.instruction
        if instruction is None:
            if reason not in judged.faults:
                right = " or ".join(sorted(judged.faults))
                self._findings.add(Kind.WRONG_REFUSAL, where, f"refused for {reason or 'no reason'}, not for {right}")
            return
        elsewhere = home(instruction.debtor, self._partitions) != partition_of(origin)
        if elsewhere and reason != Reason.WRONG_PARTITION:
            self._findings.add(Kind.WRONG_REFUSAL, where, f"refused for {reason}, not for {Reason.WRONG_PARTITION}")
        elif not elsewhere and reason == Reason.IDENTITY_CONFLICT:
            name = identity(instruction.debtor, instruction.payment_id)
            repaired = header(record.headers, REPAIR) is not None
            self._conflicts[name].append(_Conflict(origin, said, where, repaired))
        elif not elsewhere:
            self._findings.add(Kind.WRONG_REFUSAL, where, f"refused for {reason or 'no reason'}, and it is valid")

    def finish(self, accepted: Iterable[tuple[int, int]], prints: Cells) -> None:
        """Check that each conflict had an earlier payment of its identity that says something else.

        How long ago is not checked: the window of identities that ingest remembers only bounds it from below.

        Args:
            accepted: raw place and identity of each accepted payment.
            prints: fingerprints by raw place.
        """
        if not self._conflicts:
            return
        firsts: dict[int, list[int]] = {name: [] for name in self._conflicts}
        for at, name in accepted:
            if name in firsts:
                firsts[name].append(at)
        for name, refused in self._conflicts.items():
            for one in refused:
                known = [at for at in firsts[name] if came_before(at, one.origin, repaired=one.repaired)]
                if not any(prints[at] != one.said for at in known):
                    detail = "no payment of its identity with other content was accepted before"
                    self._findings.add(Kind.WRONG_REFUSAL, one.where, detail)


class Gaps:
    """Offsets of one topic without a record, by partition; for partitions that are fed in order from offset 0."""

    def __init__(self) -> None:
        self._next: defaultdict[int, int] = defaultdict(int)
        self._gaps: defaultdict[int, list[range]] = defaultdict(list)

    def take(self, partition: int, records: Iterable[Record]) -> None:
        expected = self._next[partition]
        for record in records:
            if record.offset != expected:
                self._gaps[partition].append(range(expected, record.offset))
            expected = record.offset + 1
        self._next[partition] = expected

    def end(self, ends: Mapping[int, int]) -> None:
        """Add what is missing up to the end of each partition."""
        for partition, end in ends.items():
            if end > self._next[partition]:
                self._gaps[partition].append(range(self._next[partition], end))
                self._next[partition] = end

    def account_for(self, partition: int, taken: range) -> None:
        """Remove offsets that a marker or a batch of aborted records takes; others than those of a gap are ignored."""
        gaps = self._gaps[partition]
        index = bisect_right(gaps, taken.start, key=lambda gap: gap.start) - 1
        if index < 0 or taken.stop > gaps[index].stop:
            return
        gap = gaps[index]
        if gap == taken:
            gaps[index] = range(gap.start, gap.start)  # in place: a producer with transactions leaves many gaps
        else:
            gaps[index : index + 1] = range(gap.start, taken.start), range(taken.stop, gap.stop)

    def found(self) -> dict[int, list[range]]:
        """Return the gaps of each partition that has any, in order."""
        left = {partition: [gap for gap in gaps if gap] for partition, gaps in self._gaps.items()}
        return {partition: gaps for partition, gaps in left.items() if gaps}
