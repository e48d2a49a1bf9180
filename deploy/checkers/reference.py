"""The history of reference data: which fee, rate or subscription was in force when a record was made (I3, I11). Pure.

A record names the version that decided it. A record of a former version does not: any version in force about that time
may have decided it. A service follows the topics with a delay, so a superseded version may still be used for STALE_MS.

Invariant: a record is never judged by guessing. Superseded versions that may have been compacted away leave a decision
open, which is counted and is not a violation.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from deploy.checkers.offsets import named, place
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record

STALE_MS: Final = 60_000
"""How long a superseded version may still be used; clocks of the writers may differ by as much."""

V = TypeVar("V")


class Version(NamedTuple, Generic[V]):
    """A record of a reference topic."""

    place: str  # `partition:offset`
    at_ms: int  # in force from here on
    until_ms: float  # superseded, infinite if it is in force still
    value: V | None  # None for a tombstone: nothing is in force


class Choice(NamedTuple, Generic[V]):
    """The values that may have decided a record."""

    values: tuple[V | None, ...]  # None means that no record was in force
    complete: bool = True  # whether no other version, compacted away since, may have decided it
    fault: str | None = None  # why the version that it names is wrong


class Versions(Generic[V]):
    """The versions of each key of one reference topic.

    Args:
        compacted_before_ms: a version that was superseded before may no longer be in the log.
    """

    def __init__(
        self, findings: Findings, topic: str, decode: Callable[[bytes], V], compacted_before_ms: int = 0
    ) -> None:
        self._findings = findings
        self._topic = topic
        self._decode = decode
        self._compacted_before_ms = compacted_before_ms
        self._versions: dict[str, list[Version[V]]] = {}
        self._chosen: dict[tuple[str, str], tuple[Version[V], Choice[V]]] = {}

    def feed(self, partition: int, records: list[Record]) -> None:
        for record in records:
            at = place(partition, record.offset)
            try:
                key = (record.key or b"").decode()
                value = None if record.value is None else self._decode(record.value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._findings.add(Kind.UNREADABLE, named(self._topic, at), str(error))
                continue
            version = Version(f"{partition}:{record.offset}", record.timestamp_ms, float("inf"), value)
            self._supersede(key, version)

    def _supersede(self, key: str, version: Version[V]) -> None:
        versions = self._versions.setdefault(key, [])
        versions.append(version)
        if len(versions) > 1:
            last = versions[-2] = versions[-2]._replace(until_ms=version.at_ms)
            self._remember(key, last)
        self._remember(key, version)

    def _remember(self, key: str, version: Version[V]) -> None:
        self._chosen[key, version.place] = version, Choice((version.value,))

    def named(self, key: str, at: str | None, used_ms: int) -> Choice[V]:
        """Return the version that a record names by its coordinates; None for a key without a record in force."""
        if at is None:
            return self._none(key, used_ms)
        found = self._chosen.get((key, at))
        if found is None:
            if self._may_be_compacted(used_ms):
                return Choice((), complete=False)
            return Choice((), fault=f"it names {self._topic}:{at}, which is not a record of {key}")
        version, choice = found
        fault = _fault(version, used_ms)
        return choice if fault is None else Choice((), fault=f"it names {self._topic}:{at}, which {fault}")

    def _none(self, key: str, used_ms: int) -> Choice[V]:
        if key not in self._versions or None in self.possible(key, used_ms).values:
            return Choice((None,))
        return Choice((), fault=f"it names no record of {self._topic}, and one of {key} was in force")

    def possible(self, key: str, used_ms: int) -> Choice[V]:
        """Return every version that was in force within STALE_MS of a record that names none."""
        versions = self._versions.get(key, [])
        found = [
            version.value
            for version in versions
            if version.at_ms <= used_ms + STALE_MS and version.until_ms >= used_ms - STALE_MS
        ]
        if versions and versions[0].at_ms < used_ms - STALE_MS:
            return Choice(tuple(found))
        return Choice((None, *found), not self._may_be_compacted(used_ms))

    def _may_be_compacted(self, used_ms: int) -> bool:
        """Whether a version that was used then may have been superseded, and compacted away."""
        return used_ms - STALE_MS < self._compacted_before_ms


def _fault(version: Version[V], used_ms: int) -> str | None:
    """Describe why a version could not be used at that time; None if it could."""
    if version.value is None:
        return "deletes its key"
    if used_ms - STALE_MS > version.until_ms:
        return f"was superseded {(used_ms - version.until_ms) / 1000:.0f} s before"
    return "was written later" if version.at_ms > used_ms + STALE_MS else None
