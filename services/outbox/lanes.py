"""Lanes: how much may be called at each destination, and when. Pure: seconds come in as arguments.

A destination has a lane of its own, `lane_name`, and fails or is slow there alone. The mail server has one lane for all
recipients: it takes every mail and delivers it later, so what fails or is slow is the server and not a recipient's
domain.

Invariants:
- A lane has at most `lane_calls_max` calls under way. It begins one only while it has fewer than there are slots free
  of `calls_max`. So some slots are always left for a lane that has none: K lanes that take all they get leave one part
  in K + 1 free. This is the dynamic threshold of Choudhury and Hahne (1998).
- Only what is going to be called within WORK_S is claimed: a lane has room for as many effects as its calls, by their
  mean time, finish in that time, and for no more than its calls while one of them takes longer. So a claim's lease is
  not used up in a queue, and a slow destination has no more claims than calls.
- A lane that failed `failures_max` times in a row is open: for `open_s` seconds it gets no call. Then one effect is
  claimed and tried, and the others wait for its answer. A pause that a destination asks for (Retry-After) keeps its
  lane closed to all of its effects, and no other lane.
"""

from functools import lru_cache
from math import inf
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from shared.events.effects import Channel, channel_of

MAIL_LANE: Final = "smtp"
LANES_MAX: Final = 10_000  # remembered; with more, an idle one is forgotten, or the one known longest
WORK_S: Final = 0.2  # a lane has claims for so many seconds of work; more than a request waits would be in vain
QUICK_S: Final = 0.01
QUEUED_S: Final = 0.05
"""A lane whose quickest calls take at most QUICK_S is limited by this process or its machine: a mean up to QUEUED_S is
the wait of calls for each other. With 16 at once, an inbox of 200 is called within 0.13 s, or 0.63 s. Input may wait
for such a lane, because writing its effects to effects.waiting would cost more than the wait."""
SILENT_S: Final = 900.0  # longer than between two tries of an effect
_WEIGHT: Final = 8  # of the past, in the moving average of a call's seconds
_QUICKEST_WEIGHT: Final = 1024  # the same for a slower call, in the moving minimum
_NAMES_MAX: Final = 4096  # asked for with each effect, for few destinations
_PORTS: Final = {"http": 80, "https": 443}


@lru_cache(_NAMES_MAX)
def lane_name(destination: str) -> str:
    """The name of a destination's lane.

    That is the endpoint of a webhook, a file's destination itself, or MAIL_LANE. What is no destination has its own.
    """
    try:
        channel = channel_of(destination)
        if channel is Channel.EMAIL:
            return MAIL_LANE
        return endpoint_of(destination) if channel is Channel.WEBHOOK else destination
    except ValueError:
        return destination


def origin_of(destination: str) -> str:
    """The origin of a URL as `scheme://host:port`, always with its port (RFC 6454, section 4).

    Raises ValueError if it is no http or https URL with a host and a possible port.
    """
    parts = urlsplit(destination)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{destination!r} is no webhook's URL: give https://host/path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    return f"{parts.scheme}://{host}:{port}"


def endpoint_of(destination: str) -> str:
    """Origin and path of a URL, without its query: these identify a subscriber. Raises as `origin_of`."""
    return origin_of(destination) + (urlsplit(destination).path or "/")


class Lane:
    """The state of one destination.

    Attributes:
        name: of the destination.
        calls_max: bound of its calls under way.
        claimed: effects that were claimed, or are about to be, and whose calls have not ended.
        took_s: moving average of the seconds that a successful call takes; 0 before the first.
        quickest_s: moving minimum of the same. It has no part of the time that calls wait for each other, in this
            process or at the destination.
    """

    __slots__ = (
        "_begun_s",
        "calls_max",
        "claimed",
        "failed_at_s",
        "failures",
        "name",
        "opens_at_s",
        "quickest_s",
        "took_s",
    )

    def __init__(self, name: str, calls_max: int) -> None:
        self.name = name
        self.calls_max = calls_max
        self.claimed = 0
        self.failures = 0  # in a row
        self.failed_at_s = 0.0  # the last of them
        self.opens_at_s = 0.0
        self.took_s = 0.0
        self.quickest_s = 0.0
        self._begun_s: dict[int, float] = {}  # calls under way by number, the oldest first

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._begun_s)

    def begin(self, number: int, now_s: float) -> None:
        self._begun_s[number] = now_s

    def end(self, number: int) -> float:
        """Take note of a call's end, and return when it began."""
        return self._begun_s.pop(number)

    def took(self, seconds: float) -> None:
        """Take note of the seconds that a successful call took."""
        self.quickest_s += (seconds - self.quickest_s) / (_QUICKEST_WEIGHT if self.took_s else 1)
        self.quickest_s = min(seconds, self.quickest_s)
        self.took_s += (seconds - self.took_s) / (_WEIGHT if self.took_s else 1)

    def is_quick(self, now_s: float) -> bool:
        """Whether its calls are limited by this process or its machine, and none under way is late."""
        return not (self.failures or self.quickest_s > QUICK_S or self.took_s > QUEUED_S or self.is_late(now_s))

    def is_late(self, now_s: float) -> bool:
        """Whether a call under way has taken longer than WORK_S: what its calls took before says nothing now."""
        return bool(self._begun_s) and now_s - next(iter(self._begun_s.values())) > WORK_S

    @property
    def is_idle(self) -> bool:
        return not (self.claimed or self.failures)


class Admission(NamedTuple):
    """Whether an effect may be claimed now.

    Attributes:
        lane: where it has room from now on; None if it is to be decided without a call.
        wait_s: seconds until its lane is to be asked again, 0 if it may be claimed; FULL until a call of it has ended.
    """

    lane: Lane | None = None
    wait_s: float = 0.0


FULL: Final = inf
NO_CALL: Final = Admission()


class Lanes:
    """All lanes of an instance. The partitions share them.

    Args:
        calls_max: calls under way in all lanes.
        lane_calls_max: in one lane.
        failures_max: failures in a row that open a lane.
        open_s: seconds without a call then.
    """

    def __init__(self, calls_max: int, lane_calls_max: int, failures_max: int, open_s: float) -> None:
        self._calls_max = calls_max
        self._lane_calls_max = lane_calls_max
        self._failures_max = failures_max
        self._open_s = open_s
        self._lanes: dict[str, Lane] = {}
        self._failing: set[Lane] = set()
        self._calls = 0
        self._number = 0

    def lane(self, name: str, calls_max: int | None = None) -> Lane:
        """Return the lane of this name; its calls are bounded by `calls_max` as well if it is new."""
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._forget()
            bound = self._lane_calls_max if calls_max is None else min(calls_max, self._lane_calls_max)
            lane = self._lanes[name] = Lane(name, bound)
        return lane

    def wait_s(self, lane: Lane, now_s: float) -> float:
        """Seconds until this lane may be called; 0 is now."""
        return max(lane.opens_at_s - now_s, 0.0)

    def admit(self, lane: Lane, now_s: float) -> Admission:
        """Take room for one effect, if there is any; give it back by `lane.claimed -= 1`."""
        wait_s = self.wait_s(lane, now_s)
        if wait_s > 0 or self.room(lane, now_s) == 0:
            return Admission(None, wait_s or FULL)
        lane.claimed += 1
        return Admission(lane)

    def room(self, lane: Lane, now_s: float) -> int:
        """How many more of its effects may be claimed now; 0 for none."""
        if lane.opens_at_s > now_s:
            return 0
        if lane.failures >= self._failures_max:
            return max(1 - lane.claimed, 0)
        bound = lane.calls_max
        if not lane.failures and 0 < lane.took_s < WORK_S and not lane.is_late(now_s):
            bound = int(bound * WORK_S / lane.took_s)
        return max(bound - lane.claimed, 0)

    def may_begin(self, lane: Lane) -> bool:
        """Whether a slot is free for a call of this lane."""
        return lane.calls < min(lane.calls_max, self._calls_max - self._calls)

    def enter_s(self, lane: Lane, now_s: float) -> float:
        """As `wait_s`, but the first caller takes a trial call that is due, and the others wait."""
        wait_s = self.wait_s(lane, now_s)
        if wait_s == 0 and lane.failures >= self._failures_max:
            lane.opens_at_s = now_s + self._open_s
        return wait_s

    def begin(self, lane: Lane, now_s: float) -> int:
        """Take a slot for a call, and return the call's number."""
        self._number += 1
        self._calls += 1
        lane.begin(self._number, now_s)
        return self._number

    def end(self, lane: Lane, number: int) -> None:
        """Free the slot of a call, whatever its outcome."""
        self._calls -= 1
        lane.end(number)

    def answered(self, lane: Lane, took_s: float) -> None:
        """The destination answered after so many seconds, whatever it said: the lane is open to all calls."""
        if lane.failures:
            lane.failures, lane.opens_at_s = 0, 0.0
            self._failing.discard(lane)
        lane.took(took_s)

    def failed(self, lane: Lane, now_s: float, retry_after_s: float | None = None) -> None:
        """The destination did not accept a call, and may have asked for a pause."""
        lane.failures += 1
        lane.failed_at_s = now_s
        self._failing.add(lane)
        if lane.failures >= self._failures_max:
            lane.opens_at_s = max(lane.opens_at_s, now_s + self._open_s)
        if retry_after_s is not None:
            lane.opens_at_s = max(lane.opens_at_s, now_s + retry_after_s)

    def open_count(self, now_s: float) -> int:
        """How many lanes are open, or tried; one that did not fail for SILENT_S has nothing to be called for."""
        return sum(
            (lane.failures >= self._failures_max or lane.opens_at_s > now_s) and now_s - lane.failed_at_s <= SILENT_S
            for lane in list(self._failing)  # a scrape may run in another thread
        )

    def _forget(self) -> None:
        name = next((name for name, lane in self._lanes.items() if lane.is_idle), None)
        if name is None:
            name = next((name for name, lane in self._lanes.items() if not lane.claimed), None)
        if name is not None:
            self._failing.discard(self._lanes.pop(name))
