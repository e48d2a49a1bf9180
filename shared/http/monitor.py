"""The monitor's JSON interface: its paths and answers, which the view's page reads. Pure.

Invariant: no answer has a key, a value or a header of a record, but the coordinates of its source.
"""

from typing import Final

import msgspec

from shared.events.operations import RunOutcome

CLUSTER_PATH: Final = "/v1/cluster"
STEPS_PATH: Final = "/v1/steps"
AT: Final = "at"
"""Parameter of STEPS_PATH: coordinates of a record of ledger.postings; once for each."""
POSTINGS_MAX: Final = 20
"""Records of ledger.postings of one request."""
STEPS_MAX: Final = 8
"""Records from a posting back to its raw record, both counted; there are four or five."""


class Run(msgspec.Struct, frozen=True):
    """A reconciliation's outcome, written at `at_ms` since 1970 UTC."""

    at_ms: int
    outcome: RunOutcome


class ClusterState(msgspec.Struct, frozen=True):
    """The cluster, as the monitor's last round found it.

    Attributes:
        failure: why that round was not answered completely, in words; empty if it was.
        brokers: number of brokers alive.
        lso_lag: high watermark minus last stable offset, by topic, summed over its partitions.
        behind: from a group's committed offsets to the last stable ones of its input, by group; markers count.
        run: the newest reconciliation; None if there was none.
    """

    failure: str
    brokers: int
    lso_lag: dict[str, int]
    behind: dict[str, int]
    run: Run | None = None


class Step(msgspec.Struct, frozen=True):
    """One record of a payment's way.

    Attributes:
        what: what the record is: raw, accepted, transfer, debit posting and the like.
        topic, partition, offset: its coordinates.
        at: the same, as topic:partition:offset.
        timestamp_ms: when it was written, milliseconds since 1970 UTC; null where it is not found.
        source: coordinates of the record that it was made from; null for the raw one.
        found: whether it is there, committed; of one that is not, nothing else is known.
    """

    what: str
    topic: str
    partition: int
    offset: int
    at: str
    timestamp_ms: int | None
    source: str | None
    found: bool


class Steps(msgspec.Struct, frozen=True):
    """The records that postings go back to, the postings included; in no order, each once."""

    steps: tuple[Step, ...]
