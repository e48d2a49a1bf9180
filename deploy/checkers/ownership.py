"""The installation's own records, and who submitted each payment. Pure.

Feed the topic `installation` first. A record of payments.raw below the offsets of the record `ownership` counts as the
operator's, whatever its header says. So does every record where there is no record `ownership`.

Invariant: clients are kept once each, and a record has the number of its own.
"""

import msgspec

from deploy.checkers.offsets import NONE, named, offset_of, partition_of, place
from deploy.checkers.verdict import Findings, Kind
from shared.eos.records import Record
from shared.events.catalogue import INSTALLATION
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.installation import OWNERSHIP_KEY, Ownership, decode_installation, decode_ownership

NO_CLIENT = 0
"""Number of a record without a client."""


class Submitters:
    """Who submitted payments, and from where on that counts.

    Attributes:
        installation: the installation's id, by the first record of the topic; empty where there is none.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.installation = ""
        self._ownership: Ownership | None = None
        self._numbers: dict[SubmittedBy | None, int] = {None: NO_CLIENT}
        self._known: list[SubmittedBy | None] = [None]

    def feed(self, partition: int, records: list[Record]) -> None:
        """Take records of the topic `installation`. Of each kind, the first one counts."""
        for record in records:
            value = record.value or b""
            try:
                if record.key == OWNERSHIP_KEY:
                    self._ownership = self._ownership or decode_ownership(value)
                else:
                    self.installation = self.installation or decode_installation(value).id
            except msgspec.DecodeError as error:
                self._findings.add(Kind.UNREADABLE, named(INSTALLATION, place(partition, record.offset)), str(error))

    def counts_at(self, raw: int) -> bool:
        """Whether a raw record needs a client, by its place; one without a place does not."""
        return raw != NONE and offset_of(raw) >= self.counts_from(partition_of(raw))

    def counts_from(self, partition: int) -> float:
        """Return the first offset of a partition of payments.raw that needs a client; infinite where none does."""
        if self._ownership is None:
            return float("inf")
        raw_from = self._ownership.raw_from
        return raw_from[partition] if partition < len(raw_from) else 0

    def effective(self, raw: int, said: SubmittedBy | None) -> SubmittedBy | None:
        """Return whom a raw record counts for, given whom its header or a record made from it names."""
        return said if self.counts_at(raw) else OPERATOR

    def number(self, by: SubmittedBy | None) -> int:
        """Return the number of a client and its key."""
        number = self._numbers.get(by)
        if number is None:
            number = self._numbers[by] = len(self._known)
            self._known.append(by)
        return number

    def numbered(self, number: int) -> SubmittedBy | None:
        return self._known[number]
