"""Faults of the demonstration, and when each is due. Pure.

A point is a share of the payments loaded by then; the pipeline is some tens of milliseconds behind. A fault counts only
when the target ran and there was input left: one that hits an idle process proves nothing.
"""

import random

import msgspec

SERVICES = ("ingest", "transform", "ledger", "outbox")
BROKERS = 3
EARLIEST, LATEST = 0.10, 0.80
BROKER_EARLIEST, SERVICE_LATEST = 0.60, 0.55
"""The broker comes last: while its partitions change leader the pipeline stops, and a service killed then is idle."""

KILL, FLUSH = "kill -9", "FLUSHALL"


class Fault(msgspec.Struct, frozen=True):
    """A fault to come.

    Attributes:
        target: a service, `broker-<n>` or `redis`.
        watched: the service whose input must remain: the target itself, ingest for a broker, the outbox for Redis.
        share: of all payments that have been loaded by then, 0 to 1.
    """

    action: str
    target: str
    watched: str
    share: float


class Injected(msgspec.Struct, frozen=True):
    """A fault that was injected.

    Attributes:
        loaded: payments that were loaded by then.
        processed, remaining: records of the watched service's input right after.
    """

    action: str
    target: str
    watched: str
    loaded: int
    processed: int
    remaining: int


def plan(seed: int) -> list[Fault]:
    """The faults of a run: each service and one broker killed once, Redis flushed once. Replays from its seed."""
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    faults = [Fault(KILL, name, name, chance.uniform(EARLIEST, SERVICE_LATEST)) for name in SERVICES]
    faults.append(Fault(FLUSH, "redis", "outbox", chance.uniform(EARLIEST, SERVICE_LATEST)))
    broker = f"broker-{chance.randrange(BROKERS)}"
    faults.append(Fault(KILL, broker, "ingest", chance.uniform(BROKER_EARLIEST, LATEST)))
    return sorted(faults, key=lambda fault: fault.share)


def due(fault: Fault, loaded: int, total: int) -> bool:
    """Whether the fault's moment has come, by payments loaded and payments in all."""
    return loaded >= fault.share * total
