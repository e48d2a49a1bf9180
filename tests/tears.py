"""The parts of a transaction of each service, and every way in which it can be torn.

A transaction consists of parts: the consumed offset, the changelog, and each output partition. A tear says which parts
were committed; the others were aborted.
"""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from shared.events import catalogue

OFFSET, CHANGELOG = "offset", "changelog"
LEGS, OTHER_LEGS = "ledger.transfers, first partition", "ledger.transfers, second partition"

PARTS: Mapping[str, tuple[str, ...]] = {
    "ingest": (
        OFFSET,
        CHANGELOG,
        catalogue.PAYMENTS_ACCEPTED,
        catalogue.PAYMENTS_DEDUPLICATED,
        catalogue.PAYMENTS_DEAD_LETTER,
    ),
    "transform": (OFFSET, CHANGELOG, catalogue.LEDGER_TRANSFERS),
    "ledger": (OFFSET, CHANGELOG, catalogue.LEDGER_POSTINGS, LEGS, OTHER_LEGS, catalogue.EFFECTS_REQUESTS),
    "outbox": (OFFSET, CHANGELOG, catalogue.EFFECTS_RESULTS, catalogue.EFFECTS_DEAD_LETTER),
}
"""The parts of a transaction, by service."""


class Tear(NamedTuple):
    """One way in which a service's transaction ended.

    Attributes:
        committed: the parts that were committed.
    """

    service: str
    committed: frozenset[str]

    @property
    def is_torn(self) -> bool:
        """Whether some parts were committed and some aborted."""
        return 0 < len(self.committed) < len(PARTS[self.service])

    def __str__(self) -> str:
        names = [part for part in PARTS[self.service] if part in self.committed]
        return f"{self.service}: {' + '.join(names) or 'nothing'}"


class Rule(NamedTuple):
    """A finding that a tear must lead to.

    Attributes:
        there: the finding is due where these parts were committed,
        gone: and these were aborted.
        kind: of the finding.
        at: the record that it names, by its name in `Transaction.records`.
    """

    there: frozenset[str]
    gone: frozenset[str]
    kind: str
    at: str

    def applies(self, tear: Tear) -> bool:
        """Whether a tear must lead to it."""
        return self.there <= tear.committed and not self.gone & tear.committed


def rules(there: str, gone: str, kind: str, *names: str) -> list[Rule]:
    """The rules for one committed and one aborted part, for each of some records."""
    return [Rule(frozenset([there]), frozenset([gone]), kind, name) for name in names]


def tears(service: str) -> list[Tear]:
    """Every combination of a service's parts, including all and none."""
    parts = PARTS[service]
    return [
        Tear(service, frozenset(part for part, there in zip(parts, chosen, strict=True) if there))
        for chosen in product((True, False), repeat=len(parts))
    ]


EVERY: tuple[Tear, ...] = tuple(tear for service in PARTS for tear in tears(service))
