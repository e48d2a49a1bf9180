"""Which processes the demonstration kills, and when. Pure.

A point is a share of the target's own input. A kill counts only when input was left at that moment: one that hits an
idle process proves nothing.
"""

import random

import msgspec

SERVICES = ("ingest", "transform", "ledger")
BROKERS = 3
EARLIEST, LATEST = 0.10, 0.80


class Fault(msgspec.Struct, frozen=True):
    """A kill -9 to come.

    Attributes:
        target: a service, or `broker-<n>`.
        watched: the service whose progress tells when; the target itself, or ingest for a broker.
        share: of the watched service's input that has been processed by then, 0 to 1.
    """

    target: str
    watched: str
    share: float


class Injected(msgspec.Struct, frozen=True):
    """A kill that was done.

    Attributes:
        processed, remaining: records of the watched service's input at that moment.
    """

    target: str
    watched: str
    processed: int
    remaining: int


def plan(seed: int) -> list[Fault]:
    """The faults of a run: each service once and one broker once. Replays from its seed."""
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    faults = [Fault(name, name, chance.uniform(EARLIEST, LATEST)) for name in SERVICES]
    broker = f"broker-{chance.randrange(BROKERS)}"
    faults.append(Fault(broker, "ingest", chance.uniform(EARLIEST, LATEST)))
    return sorted(faults, key=lambda fault: fault.share)


def due(fault: Fault, processed: int, total: int) -> bool:
    """Whether the fault's moment has come.

    Args:
        processed, total: of the watched service's input, in records.
    """
    return processed >= fault.share * total
