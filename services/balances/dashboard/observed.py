"""What the collector has seen when it tells the page: answers of instances, of the view's database, of the cluster.

Plain values without behaviour; what could not be asked is None. Times in `_s` are of a monotonic clock.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from services.balances.dashboard.scrape import Scrape
from services.balances.dashboard.watched import Watched
from services.balances.projection.progress import Position
from shared.events.reconciliation import RunOutcome


class Answer(StrEnum):
    """How an instance answered /readyz."""

    READY = "ready"
    NOT_READY = "not_ready"
    SILENT = "silent"


class Instance(msgspec.Struct, frozen=True):
    """One instance as it answered last.

    Attributes:
        reasons: what keeps it from being ready, by condition; of a silent one, why there is no answer.
        scrape: what /metrics had this time; None when it had nothing.
    """

    watched: Watched
    answer: Answer
    reasons: Mapping[str, str] = {}
    scrape: Scrape | None = None


class ViewLook(msgspec.Struct, frozen=True):
    """One look into the view's tables, all from one snapshot of the database.

    Attributes:
        positions: how far each partition of ledger.postings is in the tables.
        events: how many debit legs, credit legs and declines, by kind.
        balances: minor units by holder and currency; a holder is `clients`, or a house account without its partition.
    """

    positions: tuple[Position, ...]
    events: Mapping[str, int]
    balances: Mapping[tuple[str, str], int]


class ClusterLook(msgspec.Struct, frozen=True):
    """One look at the cluster.

    Attributes:
        brokers: how many are alive.
        lso_lag: high watermark minus last stable offset, by topic, summed over its partitions.
        behind: offsets from a group's committed offsets to the last stable ones, markers counted; of the groups of
            services that do not answer for themselves.
    """

    brokers: int
    lso_lag: Mapping[str, int]
    behind: Mapping[str, int] = {}


class Run(msgspec.Struct, frozen=True):
    """One reconciliation's outcome.

    Attributes:
        at_ms: when it was told, milliseconds since 1970 UTC.
    """

    at_ms: int
    outcome: RunOutcome


class Seen(msgspec.Struct, frozen=True):
    """All of it at one moment.

    Attributes:
        at_ms: wall clock, milliseconds since 1970 UTC.
        own: what keeps the view itself from being ready, by condition.
        view: None while its database does not answer; `view_failure` says why.
        cluster: None while it does not answer; `cluster_failure` says why.
        runs: all that are known, in no order; None until the topic was read.
    """

    at_s: float
    at_ms: int
    instances: tuple[Instance, ...] = ()
    own: Mapping[str, str] = {}
    view: ViewLook | None = None
    view_failure: str = ""
    cluster: ClusterLook | None = None
    cluster_failure: str = ""
    runs: tuple[Run, ...] | None = None
