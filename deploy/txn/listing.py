"""Transactions as an operator reads them: joined to service, instance and partition, with what each one holds back.

Pure. A transactional.id begins with its service's name, and other ids are shown as well.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shared.eos.open_transactions import ENDING_STATES, Holder, Look, Open, Suspicion, Target, Transaction, holders
from shared.kafka.admin.groups import PIPELINE

HANGING: Final = "Hanging"
"""Shown as the state of a transaction that no coordinator knows."""
RECENT_S: Final = 60.0

Owners = Mapping[str, Mapping[Target, str]]
"""The client.id that has each input partition, by consumer group."""


class Hold(msgspec.Struct, frozen=True):
    """A partition whose last stable offset waits for the transaction, and how many offsets are held back."""

    partition: str
    stable: int
    held: int


class Row(msgspec.Struct, frozen=True):
    """One transaction.

    Attributes:
        transactional_id: None when no coordinator knows it; so are what would follow from it.
        instance: of the service, which owns the input partition now; None when the partition has no owner.
        input: the input partition of the transactional.id, `topic:number`.
        age_s: seconds since it began; of a hanging one, since its producer's last batch. None when it never began.
        partitions: written to and not ended yet, `topic:number`.
        holds: where the last stable offset waits for it.
    """

    transactional_id: str | None
    service: str | None
    instance: str | None
    input: str | None
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int | None
    age_s: float | None
    timeout_ms: int | None
    partitions: tuple[str, ...]
    holds: tuple[Hold, ...]


class Hanging(Open, frozen=True):
    """A transaction that a partition holds open and no coordinator knows, and how many offsets it holds back."""

    held: int


def rows(look: Look, suspicion: Suspicion, owners: Owners, *, everything: bool) -> list[Row]:
    """The table of transactions, the oldest first, those that hang before all.

    Args:
        everything: also transactional.ids that have none open and began none in the last minute.
    """
    held = holders(look)
    shown = [
        known
        for known in look.transactions
        if everything or known.is_open or (known.start_ms is not None and known.age_s(look.at_ms) < RECENT_S)
    ]
    # One that never began goes last
    shown.sort(key=lambda known: (known.start_ms is None, known.start_ms or 0, known.transactional_id))
    return [
        *(_hanging_row(look, one, held) for one in sorted(suspicion.hanging)),
        *(_row(look, known, held, owners) for known in shown),
    ]


def hanging_rows(look: Look, suspicion: Suspicion) -> list[Hanging]:
    offsets = look.offsets
    return [
        Hanging(**msgspec.structs.asdict(one), held=offsets[one.target].held if one.target in offsets else 0)
        for one in sorted(suspicion.hanging)
    ]


def instance_of(transactional_id: str, owners: Owners) -> tuple[str | None, str | None, tuple[Target, ...]]:
    """Service, instance and input partitions of a transactional.id; None, or none, for what is not known.

    It is the instance's client.id, or `<service>-<topic>-<partition>` where each partition has an id of its own.
    """
    for service, topic in PIPELINE:
        name = transactional_id.removeprefix(f"{service}-")
        if name == transactional_id:
            continue
        owned = owners.get(service, {})
        for target, client_id in owned.items():
            if name == f"{topic}-{target[1]}":
                return service, client_id.removeprefix(f"{service}-"), (target,)
        topic_of, _, number = name.rpartition("-")
        if topic_of == topic and number.isdigit():
            return service, None, ((topic, int(number)),)
        return service, name, tuple(sorted(target for target, owner in owned.items() if owner == transactional_id))
    return None, None, ()


def remedy(known: Transaction) -> str:
    """How to end a transaction that is open for too long. An abort is refused once its outcome is decided."""
    if known.state not in ENDING_STATES:
        return f"To end it:\n  once txn abort {known.transactional_id}"
    return (
        f"Its outcome is decided, and its coordinator, broker {known.coordinator}, writes the markers. If that takes "
        "long, see `once status` for brokers that are down. If none is, restart the coordinator cleanly: the new "
        "leader of its partition of __transaction_state writes them again (docs/runbooks/ProducerInitStalled.md)"
    )


def targets_text(targets: Iterable[Target]) -> str:
    """Partitions in short: `payments.accepted:0,3 payments.identities:0`."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(targets):
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())


def named(target: Target) -> str:
    """A partition in full: `payments.raw:3`."""
    return f"{target[0]}:{target[1]}"


def _row(look: Look, known: Transaction, held: list[Holder], owners: Owners) -> Row:
    service, instance, targets = instance_of(known.transactional_id, owners)
    return Row(
        transactional_id=known.transactional_id,
        service=service,
        instance=instance,
        input=targets_text(targets) or None,
        state=known.state,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        coordinator=known.coordinator,
        age_s=None if known.start_ms is None else known.age_s(look.at_ms),
        timeout_ms=known.timeout_ms,
        partitions=tuple(map(named, known.partitions)),
        holds=_holds(one for one in held if one.transactional_id == known.transactional_id),
    )


def _hanging_row(look: Look, one: Open, held: list[Holder]) -> Row:
    known = look.producers.get(one.target, ())
    last_ms = next((each.last_timestamp_ms for each in known if each.producer_id == one.producer_id), None)
    return Row(
        transactional_id=None,
        service=None,
        instance=None,
        input=None,
        state=HANGING,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        coordinator=None,
        age_s=None if last_ms is None else max(look.at_ms - last_ms, 0) / 1000,
        timeout_ms=None,
        partitions=(named(one.target),),
        holds=_holds(holder for holder in held if holder.open == one),
    )


def _holds(held: Iterable[Holder]) -> tuple[Hold, ...]:
    return tuple(Hold(named(one.open.target), one.stable, one.held) for one in held)
