"""From records of effects.requests to jobs, and which of them to claim. Pure."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from services.outbox.domain import Job, Later
from services.outbox.flights import Flight
from services.outbox.lanes import FULL, Admission, Lane, lane_name
from services.outbox.waiting import Admit, Chain, WaitingStore
from shared.eos.records import Record
from shared.events.codec import InternalInputError
from shared.events.effects import EffectRequest, Resolution, ResolutionAction, Waiting, decode_request
from shared.events.headers import ORIGIN, Coordinates, header

ASIDE: Final = "its destination, or an earlier effect of its account, is not ready for it"
_BEHIND: Final = Admission(None, 1.0)


def job_of(record: Record, takes_keys: Callable[[EffectRequest], bool], now_ms: int, *, doubtful: bool) -> Job:
    """Decode the job of a record of effects.requests, taken up at `now_ms`.

    It is doubtful if it may have been called already. Raises InternalInputError if the record is not what the ledger or
    `once effects resolve` write.
    """
    source = Coordinates(record.topic, record.partition, record.offset).encode()
    origin = header(record.headers, ORIGIN)
    try:
        decoded = decode_request(record.value or b"")
    except ValueError as error:
        raise InternalInputError(f"{source.decode()}: {error}") from error
    if origin is None:
        raise InternalInputError(f"{source.decode()} has no origin")
    request = decoded.request if isinstance(decoded, Resolution) else decoded
    job = Job(request, source, origin, record.offset, takes_keys(request), first_ms=now_ms, doubtful=doubtful)
    if not isinstance(decoded, Resolution):
        return job
    return replace(
        job,
        revision=decoded.revision,
        resends=decoded.resends,
        resends_before=decoded.resends,
        settles_doubt=decoded.settles_doubt,
        action=decoded.action,
    )


class Entry:
    """A request that the committed offset has not passed.

    Attributes:
        later: it is put aside, not claimed.
        flight: it was claimed.
        repeated: its effect is in hand already, or waits.
    """

    __slots__ = ("flight", "job", "later", "record", "repeated")

    def __init__(self, record: Record, job: Job) -> None:
        self.record = record
        self.job = job
        self.later: Later | None = None
        self.flight: Flight | None = None
        self.repeated = False

    def is_settled(self, now_s: float, patience_s: float) -> bool:
        """Whether the offset may pass it: it is decided, or has waited for its call for `patience_s`.

        A call to a destination that is known to fail, or to take longer, is not waited for.
        """
        flight = self.flight
        if flight is None:
            return self.repeated or self.later is not None
        if flight.decision is not None or now_s - flight.begun_s >= patience_s:
            return True
        return flight.lane is not None and (flight.lane.failures > 0 or flight.lane.took_s > patience_s)


class Wish(NamedTuple):
    """An effect to be claimed.

    Attributes:
        lane: where it has room; None if it gets no call.
        entry: the request; None for an effect that waited.
        after: the request of its chain that must be done first.
    """

    job: Job
    lane: Lane | None
    entry: Entry | None = None
    after: Entry | None = None


class Gate(Protocol):
    """What `plan` asks of the calls."""

    def admit(self, request: EffectRequest, first_ms: int) -> Admission: ...

    def is_quick(self, request: EffectRequest) -> bool: ...

    def room(self, request: EffectRequest) -> int: ...


def admit_half(gate: Gate) -> Admit:
    """Return how effects that waited are admitted while requests are in hand: these keep half of a quick lane's room.

    So requests of a lane with a backlog go on, and need not be written to effects.waiting. In a lane that is not quick
    they are written, and what waited takes all of its room.
    """
    left: dict[str, int] = {}

    def admit(lane: str, waiting: Waiting) -> Admission:
        request = waiting.request
        if lane not in left:
            left[lane] = (gate.room(request) + 1) // 2 if gate.is_quick(request) else sys.maxsize
        if not left[lane]:
            return Admission(None, FULL)
        admission = gate.admit(request, waiting.first_ms)
        left[lane] -= admission.wait_s == 0
        return admission

    return admit


def plan(
    inbox: Iterable[Entry],
    room: int,
    gate: Gate,
    waiting: WaitingStore,
    flights: Mapping[str, Flight],
    now_ms: int,
) -> list[Wish]:
    """Choose at most `room` requests to be claimed now, and put aside those that would hold up others.

    Put aside is what waits for its lane, for effects of its lane that wait already, or for an earlier one of its chain.
    A quick lane that is full is about to have room: its requests stay in the inbox, unless one behind them can be
    claimed. So a backlog of one quick destination is not written to effects.waiting, and holds up no other. Its
    requests do not go behind what waits either: else, after a stall that had some of them put aside, all later ones
    would be written twice until the last of the backlog is done.
    """
    wishes: list[Wish] = []
    held: list[Entry] = []
    chains: dict[Chain, Entry] = {}
    seen: set[str] = set()
    for entry in inbox:
        job, effect_id, chain = entry.job, entry.job.effect_id, entry.job.chain
        if effect_id in seen:
            break  # each decision builds on the one before, which must be committed first
        seen.add(effect_id)
        flight = flights.get(effect_id)
        if entry.flight is None and entry.later is None and not entry.repeated:
            if flight is not None and not flight.stored:
                entry.flight = flight  # its transaction was aborted, and it is read again
            elif flight is not None or effect_id in waiting:
                entry.repeated = True
            elif len(wishes) >= room:
                break
            elif job.action in {ResolutionAction.CONFIRM, ResolutionAction.ABANDON}:
                wishes.append(Wish(job, None, entry))
                continue
            else:
                before = None if chain is None else chains.get(chain)
                admission = _admission(job, before, gate, waiting, now_ms)
                if admission.wait_s == 0:
                    _put_aside(held, now_ms)
                    wishes.append(Wish(job, admission.lane, entry, before))
                elif admission.wait_s == FULL and (before in held or gate.is_quick(job.request)):
                    held.append(entry)
                else:
                    _put_aside([entry], now_ms)
        if chain is not None:
            chains[chain] = entry
    return wishes


def _admission(job: Job, before: Entry | None, gate: Gate, waiting: WaitingStore, now_ms: int) -> Admission:
    if job.chain is not None:
        is_called = before is not None and before.later is None and not before.repeated
        if waiting.has_chain(job.chain) or (before is not None and not is_called):
            return _BEHIND
    if waiting.is_due(lane_name(job.request.destination), now_ms) and not gate.is_quick(job.request):
        return _BEHIND
    return gate.admit(job.request, job.first_ms)


def _put_aside(entries: list[Entry], now_ms: int) -> None:
    for entry in entries:
        entry.later = Later(entry.job, now_ms, release=False, detail=ASIDE, claimed=False)
    entries.clear()
