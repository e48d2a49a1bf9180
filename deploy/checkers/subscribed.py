"""The effects that each posting and decline must ask for, by the subscriptions in force (I11). Pure.

The requests of an event are compared as a sum of fingerprints, one for each kind, destination and order: what the
subscriptions ask for is added, what was requested is subtracted, and nothing must be left.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from deploy.checkers.fingerprints import DECLINE, fingerprint
from deploy.checkers.offsets import Cells, Expiry, named
from deploy.checkers.reference import Choice, Versions
from deploy.checkers.verdict import Findings, Kind
from shared.events.catalogue import LEDGER_TRANSFERS
from shared.events.effects import EVERY_ACCOUNT, EffectKind, EffectRequest, Subscriptions
from shared.events.postings import CREDIT, DEBIT, Decline, Posting

_MASK: Final = (1 << 64) - 1
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    DEBIT: frozenset({EffectKind.RECEIPT, EffectKind.EVENT}),
    CREDIT: frozenset({EffectKind.NOTICE, EffectKind.EVENT}),
    DECLINE: frozenset({EffectKind.DECLINE_NOTICE, EffectKind.EVENT}),
    "": frozenset({EffectKind.EVENT}),  # suspense took the account's place: its balance did not change
}


class Subscribed:
    """What was asked for and not requested, by the place of the source in ledger.transfers.

    Attributes:
        open: events that could not be judged: subscriptions that decided them may have been compacted away.
    """

    def __init__(self, findings: Findings, subscriptions: Versions[Subscriptions]) -> None:
        self._findings = findings
        self._subscriptions = subscriptions
        self._left = Cells("Q")
        self._others: dict[int, frozenset[int]] = {}  # what may be left where several versions may have been in force
        self._unjudged: set[int] = set()
        self._expiry = Expiry()
        self._sums: dict[tuple[int, int, str], int] = {}  # by id: the versions are kept
        self.open = 0

    def ask(self, event: Posting | Decline, account: str, source: int, used_ms: int, where: str) -> None:
        """Note what an event must ask for.

        Args:
            account: that acted.
            source: place of its source in ledger.transfers.
            used_ms: timestamp of its record.
        """
        if "@" in account:  # the house is not notified
            return
        own, common = self._choices(event, account, used_ms)
        for choice in (own, common):
            if choice.fault is not None:
                self._findings.add(Kind.WRONG_REFERENCE, where, choice.fault)
                self._unjudged.add(source)
        situation = _situation(event, account)
        sums = {self._sum(one, other, situation) for one in own.values for other in common.values}
        if not own.complete or not common.complete:
            self._unjudged.add(source)
            self.open += 1
        if not sums:
            return
        due = sums.pop()
        if due:
            self._left[source] = (self._left[source] + due) & _MASK
        if sums:
            self._others[source] = frozenset((due - other) & _MASK for other in sums)

    def _choices(
        self, event: Posting | Decline, account: str, used_ms: int
    ) -> tuple[Choice[Subscriptions], Choice[Subscriptions]]:
        by, subscriptions = event.notified_by, self._subscriptions
        if by is None:
            return subscriptions.possible(account, used_ms), subscriptions.possible(EVERY_ACCOUNT, used_ms)
        own = subscriptions.named(account, by.account, used_ms)
        return own, subscriptions.named(EVERY_ACCOUNT, by.every_account, used_ms)

    def _sum(self, own: Subscriptions | None, common: Subscriptions | None, situation: str) -> int:
        if own is None and common is None:
            return 0
        known = id(own), id(common), situation
        found = self._sums.get(known)
        if found is None:
            found = self._sums[known] = _sum_of((own, common), _KINDS[situation])
        return found

    def request(self, request: EffectRequest, source: int, *, repaired: bool) -> None:
        """Take a request, in the order of its partition."""
        asked = fingerprint(request.kind, request.destination, request.ordered)
        self._left[source] = (self._left[source] - asked) & _MASK
        self._expiry.note(source, repaired=repaired)

    def finish(self, beginnings: Mapping[int, int]) -> None:
        """Run the final checks, given the first offset of each partition of effects.requests that is still there."""
        for at, left in self._left.filled():
            if left in self._others.get(at, ()) or at in self._unjudged or self._expiry.may_include(at, beginnings):
                continue
            detail = "its requests are not those that the subscriptions in force ask for"
            self._findings.add(Kind.EFFECT_NOT_AS_SUBSCRIBED, named(LEDGER_TRANSFERS, at), detail)


def _situation(event: Posting | Decline, account: str) -> str:
    if isinstance(event, Decline):
        return DECLINE
    return event.leg if any(entry.account == account for entry in event.entries) else ""


def _sum_of(groups: Iterable[Subscriptions | None], kinds: frozenset[str]) -> int:
    """Sum what the groups ask for; of two subscriptions to one kind at one destination, the first counts."""
    asked: dict[tuple[str, str], int] = {}
    for group in groups:
        for one in () if group is None else group.subscriptions:
            if one.kind in kinds:
                asked.setdefault((one.kind, one.destination), fingerprint(str(one.kind), one.destination, one.ordered))
    return sum(asked.values()) & _MASK
