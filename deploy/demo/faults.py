"""Faults of the demonstration: kills and flushes, each due at a point of the load, and records planted into it. Pure.

A point is a share of the payments loaded by then; the pipeline is some tens of milliseconds behind. A fault counts only
when the target ran and there was input left: one that hits an idle process proves nothing.

Of the planted records, repeats must be dropped and bad ones refused. Each repeat and each conflict follows the payment
that it takes up, immediately or far behind it. All choices replay from a seed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from deploy.drills.bad_records import BAD_RECORDS, CONFLICT

SERVICES = ("ingest", "transform", "ledger", "outbox")
BROKERS = 3
EARLIEST, LATEST = 0.10, 0.80
BROKER_EARLIEST, SERVICE_LATEST = 0.60, 0.55
"""The broker comes last: while its partitions change leader the pipeline stops, and a service killed then is idle."""

KILL, FLUSH = "kill -9", "FLUSHALL"

REPEATS = 50
BAD = 10
PLANTED = REPEATS + BAD
_ADJACENT_SHARE = 0.3


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
    """The faults of a run: each service and one broker killed once, Redis flushed once."""
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    faults = [Fault(KILL, name, name, chance.uniform(EARLIEST, SERVICE_LATEST)) for name in SERVICES]
    faults.append(Fault(FLUSH, "redis", "outbox", chance.uniform(EARLIEST, SERVICE_LATEST)))
    broker = f"broker-{chance.randrange(BROKERS)}"
    faults.append(Fault(KILL, broker, "ingest", chance.uniform(BROKER_EARLIEST, LATEST)))
    return sorted(faults, key=lambda fault: fault.share)


def due(fault: Fault, loaded: int, total: int) -> bool:
    """Whether the fault's moment has come, by payments loaded and payments in all."""
    return loaded >= fault.share * total


def interleave(lines: Iterable[bytes], seed: int) -> Iterator[bytes]:
    """The payments in their order, with PLANTED further records between them.

    Args:
        lines: payments as JSON of schema version 2, with different identities; at least PLANTED.
    """
    values = list(lines)
    if len(values) < PLANTED:
        raise ValueError(f"{len(values)} payments are too few to plant {PLANTED} records among")
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    after = _plant(values, chance)
    for index, value in enumerate(values):
        yield value
        yield from after.get(index, ())


def _plant(values: list[bytes], chance: random.Random) -> dict[int, list[bytes]]:
    """Choose the records to send after each line."""
    after: dict[int, list[bytes]] = defaultdict(list)
    chosen = chance.sample(range(len(values) - 1), PLANTED)
    for number, index in enumerate(chosen[:REPEATS]):
        repeat = _WAYS[number // 2 % len(_WAYS)](values[index]) if number % 2 else values[index]
        after[_position(index, len(values), chance)].append(repeat)
    for (name, spoil), index in zip(BAD_RECORDS.items(), chosen[REPEATS:], strict=True):
        fields = msgspec.json.decode(values[index])
        if name != CONFLICT:
            fields["payment_id"] = f"bad-{name}"
        after[_position(index, len(values), chance)].append(spoil(fields))
    return after


def _position(index: int, count: int, chance: random.Random) -> int:
    """A place after the line: adjacent, or anywhere up to the end."""
    return index if chance.random() < _ADJACENT_SHARE else chance.randrange(index + 1, count)


def _reordered(value: bytes) -> bytes:
    """The same payment with its fields in another order, and spaces."""
    fields = msgspec.json.decode(value)
    return msgspec.json.format(msgspec.json.encode(dict(sorted(fields.items(), reverse=True))), indent=1)


def _older(value: bytes) -> bytes:
    """The same payment in schema version 1."""
    fields = msgspec.json.decode(value)
    return msgspec.json.encode(
        {
            "schema_version": 1,
            "payment_id": fields["payment_id"],
            "account_from": fields["debtor"],
            "account_to": fields["creditor"],
            "amount_minor": fields["amount_minor"],
            "currency": fields["currency"],
            "occurred_at": f"{fields['value_date']}T12:00:00+00:00",
            "memo": fields.get("reference", ""),
        }
    )


_WAYS: tuple[Callable[[bytes], bytes], ...] = (_reordered, _older)
