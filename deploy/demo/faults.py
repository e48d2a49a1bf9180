"""Which processes the demonstration kills, and when. Pure.

A point is a share of the payments loaded by then; the pipeline is some tens of milliseconds behind. A kill counts only
when the target ran and had input left: one that hits an idle process proves nothing.
"""

import random

import msgspec

SERVICES = ("ingest", "transform", "ledger")
BROKERS = 3
EARLIEST, LATEST = 0.10, 0.80
BROKER_EARLIEST, SERVICE_LATEST = 0.60, 0.55
"""The broker comes last: while its partitions change leader the pipeline stands, and a service killed then is idle."""


class Fault(msgspec.Struct, frozen=True):
    """A kill -9 to come.

    Attributes:
        target: a service, or `broker-<n>`.
        watched: the service whose input must remain; the target itself, or ingest for a broker.
        share: of all payments that have been loaded by then, 0 to 1.
    """

    target: str
    watched: str
    share: float


class Injected(msgspec.Struct, frozen=True):
    """A kill that was done.

    Attributes:
        loaded: payments that were loaded by then.
        processed, remaining: records of the watched service's input right after.
    """

    target: str
    watched: str
    loaded: int
    processed: int
    remaining: int


def plan(seed: int) -> list[Fault]:
    """The faults of a run: each service once and one broker once. Replays from its seed."""
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    faults = [Fault(name, name, chance.uniform(EARLIEST, SERVICE_LATEST)) for name in SERVICES]
    broker = f"broker-{chance.randrange(BROKERS)}"
    faults.append(Fault(broker, "ingest", chance.uniform(BROKER_EARLIEST, LATEST)))
    return sorted(faults, key=lambda fault: fault.share)


def due(fault: Fault, loaded: int, total: int) -> bool:
    """Whether the fault's moment has come, by payments loaded and payments in all."""
    return loaded >= fault.share * total
