"""Calls to the outside: each a task of its own, in its destination's lane, in order where that was asked for.

Invariant: a call begins only while its claim's lease covers it, and none once the partition is to be released. Of the
effects of one chain, none is called while an earlier one is not done.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache, partial

from services.outbox.domain import Done, Later, Policy, after_call, with_attempt
from services.outbox.endpoints import Endpoints
from services.outbox.flights import EARLIER, LEFT_ALONE, WITHDRAWN, Claimed, Flight, now_ms
from services.outbox.lanes import FULL, NO_CALL, Admission, Lane, Lanes, lane_name
from services.outbox.outcomes import OUTCOME_NAMES, Delivered, Outcome, Refused, Sink
from shared.eos import crash
from shared.events.effects import Channel, EffectFailure, EffectRequest, channel_of
from shared.telemetry import catalogue
from shared.telemetry.instruments import ReadGauge, at_zero, counter, histogram

MAILTO = "mailto:"
_SINKS_MAX = 4096  # remembered; they are asked for several times with each effect

EFFECT_CALLS = counter(catalogue.EFFECT_CALLS)
at_zero(EFFECT_CALLS, [channel.value for channel in Channel], OUTCOME_NAMES.values())
EFFECT_CALL_SECONDS = histogram(catalogue.EFFECT_CALL_SECONDS)
EFFECTS_RESENT = counter(catalogue.EFFECTS_RESENT)
# A look-up of labels takes a lock, and there are few combinations
_calls_of = cache(EFFECT_CALLS.labels)
_seconds_of = cache(EFFECT_CALL_SECONDS.labels)
CIRCUITS_OPEN = ReadGauge(catalogue.CIRCUITS_OPEN)
ENDPOINTS_DISABLED = ReadGauge(catalogue.ENDPOINTS_DISABLED)


class Calls:
    """Calls through all sinks; the partitions of an instance share one."""

    def __init__(self, sinks: Mapping[Channel, Sink], lanes: Lanes, policy: Policy, endpoints: Endpoints) -> None:
        self._sinks = sinks
        self._lanes = lanes
        self._policy = policy
        self._endpoints = endpoints
        self._queues: dict[Lane, deque[Flight]] = {}  # the next to get a turn is the first
        self._failure: BaseException | None = None
        self._chance = random.Random()  # noqa: S311 # spreads retries
        self._sink = lru_cache(_SINKS_MAX)(self._find_sink)

    def takes_keys(self, request: EffectRequest) -> bool:
        """Whether the request's destination recognises effects by their ids; also while its channel has no settings."""
        sink = self._sink(request.destination)
        return not request.destination.startswith(MAILTO) if isinstance(sink, str) else sink.takes_keys

    def admit(self, request: EffectRequest, first_ms: int) -> Admission:
        """Take room for an effect that was first taken up at `first_ms`, if it may be claimed now.

        None is needed for one that gets no call: its channel has no settings, its endpoint is disabled, or it is past
        its deadline while its lane is open. A call then would take a slot for as long as a call may take, and there may
        be as many of them as came in while the destination was down.
        """
        lane = self._lane_of(request)
        if lane is None or self._endpoints.is_disabled(lane.name):
            return NO_CALL
        admission = self._lanes.admit(lane, time.monotonic())
        if 0 < admission.wait_s < FULL and now_ms() - first_ms >= self._policy.retry_deadline_ms:
            return NO_CALL
        return admission

    def is_quick(self, request: EffectRequest) -> bool:
        """Whether the request's lane is limited by this process and not by its destination."""
        lane = self._lane_of(request)
        return lane is not None and lane.is_quick(time.monotonic())

    def room(self, request: EffectRequest) -> int:
        """How many more effects of the request's lane may be claimed now; 0 if its channel has no settings."""
        lane = self._lane_of(request)
        return 0 if lane is None else self._lanes.room(lane, time.monotonic())

    def start(self, flight: Flight, after: Flight | None = None) -> None:
        """Call a claimed effect as soon as its lane has a slot, and `after` is done."""
        item, lane = flight.claimed, flight.lane
        if item is None:
            raise AssertionError(f"{flight.job.effect_id} is not to be called")
        if lane is None:
            self._end(flight, self._without_call(item))
            return
        flight.waited = lane.is_quick(time.monotonic())
        if after is not None and after.decision is None:
            after.next.append(flight)
            flight.after = after
            return
        if after is not None and isinstance(after.decision, Later):
            self._end(flight, item.put_off(now_ms(), EARLIER))
            return
        may_begin = self._lanes.may_begin(lane)
        if may_begin and not self._queues:
            self._begin_one(flight, lane)
            return
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = deque()
        queue.append(flight)
        if may_begin:
            self._begin()  # else the end of a call does

    def withdraw(self, flights: Iterable[Flight]) -> None:
        """Put off those whose call has not begun."""
        for flight in list(flights):
            if flight.decision is not None or flight.task is not None or flight.lane is None:
                continue
            if flight.after is not None:
                flight.after.next.remove(flight)
                flight.after = None
            else:
                self._queues[flight.lane].remove(flight)
                if not self._queues[flight.lane]:
                    del self._queues[flight.lane]
            self._put_off(flight, flight.until.why_over() or WITHDRAWN)

    async def cancel(self, flights: Iterable[Flight]) -> None:
        """End these, called or not, as a crash would."""
        found = list(flights)
        self.withdraw(found)
        tasks = [flight.task for flight in found if flight.task is not None and not flight.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def release(self, lane: Lane | None) -> None:
        """Give back the room of an effect that gets no call after all."""
        if lane is not None:
            lane.claimed -= 1

    def _begin(self) -> None:
        """Begin what may begin, one of each lane in turn."""
        waiting = 0  # lanes in a row that have no slot
        while waiting < len(self._queues):
            lane, queue = next(iter(self._queues.items()))
            self._queues[lane] = self._queues.pop(lane)  # to the end
            if not self._lanes.may_begin(lane):
                waiting += 1
                continue
            flight, waiting = queue.popleft(), 0
            if not queue:
                del self._queues[lane]
            self._begin_one(flight, lane)

    def _begin_one(self, flight: Flight, lane: Lane) -> None:
        why = self._refusal(flight, lane)
        if why is None:
            self._call(flight, lane)
        else:
            self._put_off(flight, why)

    def _refusal(self, flight: Flight, lane: Lane) -> str | None:
        over = flight.until.why_over()
        if over is not None:
            return over
        return LEFT_ALONE if self._lanes.wait_s(lane, time.monotonic()) > 0 else None

    def _put_off(self, flight: Flight, why: str) -> None:
        if flight.claimed is not None:
            self._end(flight, flight.claimed.put_off(now_ms(), why))

    def _call(self, flight: Flight, lane: Lane) -> None:
        now_s = time.monotonic()
        self._lanes.enter_s(lane, now_s)
        number = self._lanes.begin(lane, now_s)
        flight.task = asyncio.create_task(self._make(flight, lane))
        # Not by the task itself: one that is cancelled before it begins runs nothing
        flight.task.add_done_callback(partial(self._finished, flight, lane, number))

    def _finished(self, flight: Flight, lane: Lane, number: int, task: "asyncio.Task[Done | Later]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
        self._lanes.end(lane, number)
        self._end(flight, None if task.cancelled() or task.exception() is not None else task.result())
        self._begin()

    def raise_if_failed(self) -> None:
        """Raise the defect that ended a call: a sink raises nothing that the outside could cause."""
        if self._failure is not None:
            raise self._failure

    async def _make(self, flight: Flight, lane: Lane) -> Done | Later:
        item, until, request = flight.claimed, flight.until, flight.job.request
        sink = self._sink(request.destination)
        if item is None or isinstance(sink, str):
            raise AssertionError(f"{request.effect_id} cannot be called")
        refusal = None if sink.takes_keys else await until.begin(request.effect_id)
        if refusal is not None:
            return item.put_off(now_ms(), refusal)
        until.reach(crash.BEFORE_CALL)
        at_ms, begun_s = now_ms(), time.monotonic()
        outcome = await sink.deliver(request)
        until.reach(crash.AFTER_CALL)
        taken_s = time.monotonic() - begun_s
        self._observe(item, lane, outcome, taken_s)
        job = with_attempt(item.call.job, at_ms, int(taken_s * 1000), outcome)
        decision = after_call(job, outcome, self._policy, now_ms(), self._chance.random())
        if isinstance(decision, Done) and not sink.takes_keys:
            await until.mark(decision)
        return decision

    def _end(self, flight: Flight, decision: Done | Later | None) -> None:
        """Keep a decision, and begin what waits for it; None if the call was cancelled, or a defect ended it."""
        self.release(flight.lane)
        flight.decision = decision
        followers, flight.next = flight.next, []
        flight.until.ended(flight)
        for follower in followers:
            follower.after = None
            self.start(follower, flight)

    def _observe(self, item: Claimed, lane: Lane, outcome: Outcome, taken_s: float) -> None:
        channel = channel_of(item.job.request.destination).value
        _seconds_of(channel).observe(taken_s)
        _calls_of(channel, OUTCOME_NAMES[type(outcome)]).inc()
        if item.call.resend:
            EFFECTS_RESENT.inc()
        if isinstance(outcome, Delivered | Refused):
            self._lanes.answered(lane, taken_s)
        else:
            self._lanes.failed(lane, time.monotonic(), outcome.retry_after_s)
        if not isinstance(outcome, Refused):
            self._endpoints.observe(lane.name, now_ms(), None if isinstance(outcome, Delivered) else outcome.detail)

    def _without_call(self, item: Claimed) -> Done | Later:
        """Decide on an effect that was claimed to get no call; put it off if it may be called by now."""
        request = item.job.request
        sink, name = self._sink(request.destination), lane_name(request.destination)
        if isinstance(sink, str):
            return item.give_up(EffectFailure.REFUSED, sink)
        if self._endpoints.is_disabled(name):
            return item.give_up(EffectFailure.ENDPOINT_DISABLED, f"{name} is disabled: see `once endpoints list`")
        if not item.job.expired(self._policy, now_ms()):  # its endpoint was enabled meanwhile
            return item.put_off(now_ms(), LEFT_ALONE)
        return item.give_up(EffectFailure.RETRIES_EXHAUSTED, f"{name} was left alone when its deadline came")

    def _lane_of(self, request: EffectRequest) -> Lane | None:
        """The lane of a request; None if its channel has no settings."""
        sink = self._sink(request.destination)
        return None if isinstance(sink, str) else self._lanes.lane(lane_name(request.destination), sink.calls_max)

    def _find_sink(self, destination: str) -> Sink | str:
        """The sink of a destination, or why there is none."""
        try:
            channel = channel_of(destination)
        except ValueError as error:
            return str(error)
        return self._sinks.get(channel) or f"the outbox has no settings for {channel.value}: see docs/settings.md"
