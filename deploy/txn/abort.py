"""Abort a transaction for an operator: plan it, explain it, carry it out, and confirm it.

Invariant: nothing is planned on half of the answers, because whether a coordinator knows a transaction decides how it
may be ended; a transaction that it knows is ended through it, on all partitions at once. The caller asks for consent.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from deploy.txn.listing import instance_of, named, remedy, targets_text
from shared.eos.open_transactions import ENDING_STATES, Look, Open, Producer, Target, Transaction, held_open, unclaimed
from shared.kafka.admin.groups import PIPELINE, Groups
from shared.kafka.admin.transactions import look, look_twice
from shared.kafka.admin.txn_abort import AbortFailedError, Ended, fence, wait_ended, write_abort_marker
from shared.kafka.client.brokers import Brokers, BrokerSilentError

_DROPPED: Final = (
    "Its records there are dropped: no read_committed reader will ever see them, and what waits behind them is let go."
)


class Plan(msgspec.Struct, frozen=True):
    """An abort to be carried out.

    Attributes:
        text: the effects of the abort, for the operator's consent.
        stable: the last stable offsets before, of the partitions where it is open.
        transaction: as its coordinator knows it; None for one that hangs.
        producer: of one that hangs, as the partition's leader remembers it; else None.
    """

    name: str
    text: str
    opened: tuple[Open, ...]
    stable: dict[Target, int]
    transaction: Transaction | None = None
    producer: Producer | None = None


async def plan_known(brokers: Brokers, transactional_id: str, topics: Sequence[str]) -> Plan | None:
    """Plan the abort of a transactional.id's open transaction on these topics; None when none is open.

    Raises:
        AbortFailedError: a broker did not answer, or its end is decided already.
    """
    seen = await look(brokers, topics)
    known = next((one for one in seen.transactions if one.transactional_id == transactional_id), None)
    if known is None:
        _refuse_half(seen)
        return None
    if known.state in ENDING_STATES:
        raise AbortFailedError(f"{transactional_id} is in state {known.state}. {remedy(known)}")
    if not known.is_open:
        return None
    owners, _ = await Groups(brokers).owners([group for group, _ in PIPELINE], sorted(seen.coordinators))
    opened = tuple(
        one for one in held_open(seen) if one.producer_id == known.producer_id and one.target in known.partitions
    )
    text = _known_text(known, seen.at_ms, instance_of(transactional_id, owners))
    return Plan(transactional_id, text, opened, _stable(seen, opened), transaction=known)


async def plan_hanging(brokers: Brokers, target: Target, start_offset: int, topics: Sequence[str]) -> Plan | None:
    """Plan the abort of the hanging transaction that a partition holds open from an offset on; None without one.

    Raises:
        AbortFailedError: a broker did not answer, or a coordinator knows it: then it must be ended whole.
    """
    seen, _ = await look_twice(brokers, {*topics, target[0]})
    if seen.offsets.get(target) is None or (seen.offsets[target].held and target not in seen.producers):
        reasons = "; ".join(seen.unanswered) or "there is no such partition"
        raise AbortFailedError(f"{named(target)} does not report what it holds open: {reasons}")
    one = next((o for o in held_open(seen) if (o.target, o.start_offset) == (target, start_offset)), None)
    if one is None:
        return None
    _refuse_half(seen)
    if one not in unclaimed([one], seen.transactions):
        names = [
            known.transactional_id
            for known in seen.transactions
            if known.producer_id == one.producer_id and target in known.partitions
        ]
        raise AbortFailedError(
            f"its coordinator knows it as {names[0]}: a marker on one partition would tear it. Abort it whole with "
            f"`once txn abort {names[0]}`"
        )
    producer = next(known for known in seen.producers[target] if known.producer_id == one.producer_id)
    text = (
        f"About to write an ABORT marker (WriteTxnMarkers) on {named(target)}, for the transaction that is open there "
        f"from offset {start_offset}, of producer {one.producer_id} with epoch {one.producer_epoch}.\n"
        f"No coordinator knows it, so it never ends by itself. {_DROPPED}\n"
        "On other partitions nothing changes: what else that producer wrote may be committed. Run `once verify` "
        "afterwards, and `once repair` where it finds that a part is missing."
    )
    return Plan(f"{named(target)}:{start_offset}", text, (one,), _stable(seen, (one,)), producer=producer)


async def carry_out(brokers: Brokers, plan: Plan, *, deadline_s: float) -> list[Ended]:
    """Do what was planned, and wait until each partition says that it is done.

    Raises:
        AbortFailedError: it was refused, or is not done in time.
    """
    if plan.transaction is not None:
        known = plan.transaction
        await fence(brokers, known.transactional_id, known.timeout_ms, deadline_s=deadline_s)
    elif plan.producer is not None:
        with contextlib.suppress(BrokerSilentError):  # the marker may be written all the same: the partition shows
            await write_abort_marker(brokers, plan.opened[0], plan.producer)
    return await wait_ended(brokers, plan.opened, deadline_s=deadline_s)


def _known_text(known: Transaction, now_ms: int, owner: tuple[str | None, str | None, tuple[Target, ...]]) -> str:
    service, instance, targets = owner
    age_s, timeout_s = known.age_s(now_ms), known.timeout_ms / 1000
    who = f"producer {known.producer_id}, epoch {known.producer_epoch}"
    coordinator = f"its coordinator, broker {known.coordinator}"
    lines = [
        f"About to fence {known.transactional_id} through {coordinator} (InitProducerId):",
        f"its open transaction is aborted ({who}; open for {age_s:.1f} s with a timeout of {timeout_s:g} s).",
        f"It covers {targets_text(known.partitions) or 'no partition yet'}. {_DROPPED}",
        "Its producer is fenced: whatever it sends next is refused (PRODUCER_FENCED or INVALID_PRODUCER_EPOCH).",
    ]
    if service is not None:
        owner_text = "no instance that has partitions now" if instance is None else f"instance {instance}"
        lines.append(
            f"It belongs to {service}, {owner_text} ({targets_text(targets) or 'without input partitions'}). A service "
            "that still runs rejoins its group and processes the same input once more, so nothing of it is lost."
        )
    if age_s < timeout_s:
        lines.append(f"Left alone, it is aborted by its coordinator in {timeout_s - age_s:.1f} s.")
    return "\n".join(lines)


def _stable(seen: Look, opened: Sequence[Open]) -> dict[Target, int]:
    return {one.target: seen.offsets[one.target].stable for one in opened}


def _refuse_half(seen: Look) -> None:
    if not seen.all_coordinators:
        raise AbortFailedError(
            "whether a coordinator knows it is unknown, because not all of them answered: "
            f"{'; '.join(seen.unanswered)}. Try again when they do"
        )
