"""Audit of requests: counts by key and of refusals, until they are written to operations.audit. Pure.

Invariant: the memory is bounded by clients, keys, routes and reasons, never by requests or by what they contain. The
first use of a key is due at once and its further uses once in USES_EVERY_MS; refusals are due at once, summed.
"""

from typing import Final, NamedTuple

from shared.events.audit import KeyUsed, RequestsRefused
from shared.http.keys import Principal

USES_EVERY_MS: Final = 60_000


class _Count:
    """Requests that are not taken yet, and when such requests were last taken."""

    __slots__ = ("last_ms", "requests", "since_ms", "taken_ms")

    def __init__(self) -> None:
        self.requests = 0
        self.since_ms = 0
        self.last_ms = 0
        self.taken_ms: int | None = None

    def add(self, requests: int, since_ms: int, last_ms: int) -> None:
        self.since_ms = min(self.since_ms, since_ms) if self.requests else since_ms
        self.last_ms = max(self.last_ms, last_ms) if self.requests else last_ms
        self.requests += requests


class _Refused(NamedTuple):
    client: str
    key_id: str
    route: str
    reason: str


class Audit:
    """Counts of one gateway; all times are milliseconds since 1970 UTC.

    Args:
        instance: the gateway's name, for the events.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._uses: dict[tuple[str, str], _Count] = {}
        self._refused: dict[_Refused, _Count] = {}

    def used(self, principal: Principal, now_ms: int) -> None:
        """Count a request that was admitted."""
        key = principal.client, principal.key_id
        count = self._uses.get(key)
        if count is None:
            count = self._uses[key] = _Count()
        count.add(1, now_ms, now_ms)

    def refused(self, principal: Principal | None, route: str, reason: str, now_ms: int) -> None:
        """Count a request that was refused; None for one without a known key."""
        client, key_id = ("", "") if principal is None else (principal.client, principal.key_id)
        self._refused.setdefault(_Refused(client, key_id, route, reason), _Count()).add(1, now_ms, now_ms)

    def take(self, now_ms: int, *, stopping: bool = False) -> list[KeyUsed | RequestsRefused]:
        """Return the events that are due, and forget their requests; all of them where the gateway is stopping."""
        due: list[KeyUsed | RequestsRefused] = []
        for (client, key_id), count in self._uses.items():
            # A clock that was set back must not delay the next record by as much
            waited = count.taken_ms is None or not 0 <= now_ms - count.taken_ms < USES_EVERY_MS
            if count.requests and (waited or stopping):
                due.append(
                    KeyUsed(
                        client=client,
                        at_ms=count.last_ms,
                        key_id=key_id,
                        requests=count.requests,
                        since_ms=count.since_ms,
                        instance=self._instance,
                    )
                )
                count.requests, count.taken_ms = 0, now_ms
        due += (
            RequestsRefused(
                **refused._asdict(),
                at_ms=count.last_ms,
                requests=count.requests,
                since_ms=count.since_ms,
                instance=self._instance,
            )
            for refused, count in self._refused.items()
        )
        self._refused.clear()
        return due

    def give_back(self, event: KeyUsed | RequestsRefused) -> None:
        """Count the requests of an event again, which was taken and could not be written. It is due at once."""
        if isinstance(event, KeyUsed):
            count = self._uses.setdefault((event.client, event.key_id), _Count())
            count.taken_ms = None
        else:
            refused = _Refused(event.client, event.key_id, event.route, event.reason)
            count = self._refused.setdefault(refused, _Count())
        count.add(event.requests, event.since_ms, event.at_ms)
