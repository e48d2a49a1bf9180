"""Which input records lack outputs, by what the verifier found. Pure.

Only a record below its reader's committed offset is repaired: no service will process it again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from deploy.checkers.audit import INPUTS
from deploy.checkers.verdict import Kind, Violation
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_BALANCES, LEDGER_POSTINGS
from shared.events.headers import Coordinates

SERVICES: Final = tuple(INPUTS)  # in the order in which records pass

_SERVICE_OF: Final = {topic: service for service, topic in INPUTS.items()}
_OF_PARTS: Final = {Kind.TORN_CREDIT_LEG, Kind.TORN_CHANGELOG, Kind.EFFECT_FAILED_SILENTLY}
"""A record exists that others were written with. Its source lacks the others."""
_OF_STATE: Final = {Kind.BALANCE_DIFFERS, Kind.TERMS_DIFFER, Kind.OWNER_DIFFERS}
"""The state, or ledger.accounts, is not the fold of the postings."""
_FOLLOWING: Final = {
    Kind.NO_OUTCOME,
    Kind.LOST,
    Kind.CREDIT_MISSING,
    Kind.ORPHAN_CREDIT,
    Kind.ORPHAN_CREDIT_LEG,
    Kind.WRONG_FIRST,
    Kind.WRONG_REVERSAL,
    Kind.DRIFT,
    Kind.IN_TRANSIT,
    Kind.BANK_DIFFERS,
    Kind.EFFECT_MISSING,
    Kind.EFFECT_UNFOUNDED,
    Kind.EFFECT_ORPHAN,
    Kind.WRONG_DEBIT,
    Kind.WRONG_DECLINE,
    Kind.WRONG_RECEIVER,
    Kind.WRONG_ACCOUNT_EVENT,
    Kind.UNAUTHORISED,
}
"""Violations that a missing record can cause."""
_HARMLESS_TO_THE_FOLD: Final = {
    Kind.TORN_CREDIT_LEG,
    Kind.TORN_CHANGELOG,
    Kind.WRONG_REVERSAL,
    Kind.WRONG_DEBIT,
    Kind.WRONG_DECLINE,
    Kind.WRONG_RECEIVER,
    Kind.WRONG_ACCOUNT_EVENT,
    Kind.UNAUTHORISED,
    Kind.WRONG_REFERENCE,
    Kind.NEEDLESS_ACCOUNT_EVENT,
}


class Gap(msgspec.Struct, frozen=True):
    """Input records of one scope, a service's input partition, that lack outputs."""

    service: str
    partition: int
    offsets: tuple[int, ...]  # ascending; empty where only the state is wrong

    @property
    def topic(self) -> str:
        return INPUTS[self.service]

    def inputs(self) -> list[Coordinates]:
        return [Coordinates(self.topic, self.partition, offset) for offset in self.offsets]

    def __str__(self) -> str:
        return f"{self.service} on {self.topic}:{self.partition}"


class Plan(NamedTuple):
    """The gaps to close, in the order of SERVICES, and the violations that no missing record explains."""

    gaps: list[Gap]
    unmendable: list[Violation]


def parts(violations: Iterable[Violation]) -> set[Coordinates]:
    """Return the records whose sources `plan` needs."""
    return {_coordinates(found.where) for found in violations if found.kind in _OF_PARTS and not _is_input(found)}


def plan(violations: Iterable[Violation], sources: Mapping[str, Coordinates]) -> Plan:
    """Group what is missing by scope, given the sources of the records that `parts` names, by their coordinates.

    A record that is wrong itself is left alone, such as a repeat. So is a ledger partition with wrong postings: its
    balances cannot be set to their fold.
    """
    found = [(violation, _home(violation, sources)) for violation in violations]
    unfit = {_coordinates(violation.where).partition for violation, _ in found if _is_wrong_posting(violation)}
    # A second record of one source has no output because its receiver dropped it
    wrong = {violation.where for violation, at in found if at is None and violation.kind not in _FOLLOWING}
    offsets: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    unmendable: list[Violation] = []
    for violation, at in found:
        if at is None:
            if violation.kind not in _FOLLOWING:
                unmendable.append(violation)
        elif violation.where in wrong or (at.topic == INPUTS["ledger"] and at.partition in unfit):
            unmendable.append(violation)
        else:
            offsets[_SERVICE_OF[at.topic], at.partition] |= {at.offset} if at.offset >= 0 else set()
    gaps = [Gap(service, partition, tuple(sorted(missing))) for (service, partition), missing in offsets.items()]
    return Plan(sorted(gaps, key=lambda gap: (SERVICES.index(gap.service), gap.partition)), unmendable)


def _is_wrong_posting(found: Violation) -> bool:
    return found.where.startswith(f"{LEDGER_POSTINGS}:") and found.kind not in _HARMLESS_TO_THE_FOLD


def _home(found: Violation, sources: Mapping[str, Coordinates]) -> Coordinates | None:
    """Return the input record that a violation is about; a negative offset where it is about the state alone."""
    if _is_input(found):
        return _coordinates(found.where)
    if found.kind in _OF_PARTS:
        at = sources.get(found.where)
        return at if at is not None and at.topic in _SERVICE_OF else None
    if found.kind in _OF_STATE and found.where.startswith((f"{LEDGER_BALANCES}:", f"{LEDGER_ACCOUNTS}:")):
        partition = int(found.where.split(":")[1])
        return Coordinates(INPUTS["ledger"], partition, -1)
    return None


def _is_input(found: Violation) -> bool:
    of_input = found.kind in {Kind.SKIPPED, Kind.TORN_CHANGELOG, Kind.EFFECT_NOT_AS_SUBSCRIBED}
    return of_input and found.where.partition(":")[0] in _SERVICE_OF


def _coordinates(where: str) -> Coordinates:
    return Coordinates.decode(where.encode())
