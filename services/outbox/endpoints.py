"""Endpoints that fail, and those that are disabled: what all instances know from reference.endpoints. Pure.

An endpoint that failed for `disable_after_ms` without one success is disabled. The time counts over all instances and
restarts, because the first of its failures is on record after ANNOUNCED_MS. A refusal is neither a failure nor a
success: that effect is settled, and says nothing of the next.
"""

from collections.abc import Mapping
from typing import Final

from shared.events.endpoints import Endpoint, EndpointState

ANNOUNCED_MS: Final = 60_000  # an endpoint that fails for so long is on record
CONTINUED_MS: Final = 7_200_000
"""Of failures that are not on record, those further apart are not one: meanwhile another instance may have reached the
endpoint. It is twice the longest pause that a destination may ask for."""
FAILING_MAX: Final = 10_000
"""Endpoints whose first failure is remembered; with more, the one known longest is forgotten."""
DETAIL_MAX_CHARS: Final = 200


class Endpoints:
    """The endpoints' states.

    Args:
        records: of reference.endpoints by name, which change in place.
        disable_after_ms: 0 disables none.
    """

    def __init__(self, records: Mapping[str, Endpoint], disable_after_ms: int) -> None:
        self._records = records
        self._disable_after_ms = disable_after_ms
        self._failed_ms: dict[str, tuple[int, int]] = {}  # the first and the last of its failures here
        self._own: dict[str, Endpoint] = {}  # decided here, and perhaps not read yet
        self._changes: dict[str, Endpoint] = {}

    def is_disabled(self, name: str) -> bool:
        known = self._known(name)
        return known is not None and known.state == EndpointState.DISABLED

    def disabled_count(self) -> int:
        return sum(record.state == EndpointState.DISABLED for record in list(self._records.values()))

    def observe(self, name: str, now_ms: int, failure: str | None) -> None:
        """Take note of a call: how it failed, or None for a success."""
        known = self._known(name)
        if failure is None:
            self._failed_ms.pop(name, None)
            if known is not None and known.failing_since_ms and known.state == EndpointState.ENABLED:
                self._change(name, Endpoint(EndpointState.ENABLED.value, now_ms))
            return
        if known is not None and known.state == EndpointState.DISABLED:
            return
        since_ms = self._failing_since(name, now_ms, known)
        failing_ms = now_ms - since_ms
        if 0 < self._disable_after_ms <= failing_ms:
            self._change(name, self._failing(EndpointState.DISABLED, now_ms, since_ms, failure))
            self._failed_ms.pop(name, None)
        elif failing_ms >= ANNOUNCED_MS and (known is None or not known.failing_since_ms):
            self._change(name, self._failing(EndpointState.ENABLED, now_ms, since_ms, failure))

    def take_changes(self) -> dict[str, Endpoint]:
        """Take what is to be written; `give_back` what was not."""
        changes, self._changes = self._changes, {}
        return changes

    def give_back(self, changes: Mapping[str, Endpoint]) -> None:
        self._changes = {**changes, **self._changes}

    def _failing_since(self, name: str, now_ms: int, known: Endpoint | None) -> int:
        if known is not None and known.failing_since_ms:
            return known.failing_since_ms
        if name not in self._failed_ms and len(self._failed_ms) >= FAILING_MAX:
            del self._failed_ms[next(iter(self._failed_ms))]
        since_ms, last_ms = self._failed_ms.get(name, (now_ms, now_ms))
        reached = known is not None and since_ms < known.at_ms  # by another instance since, or it was enabled
        if reached or now_ms - last_ms > CONTINUED_MS:
            since_ms = now_ms
        self._failed_ms[name] = since_ms, now_ms
        return since_ms

    def _known(self, name: str) -> Endpoint | None:
        record, own = self._records.get(name), self._own.get(name)
        if own is None:
            return record
        if record is not None and record.at_ms >= own.at_ms:
            del self._own[name]
            return record
        return own

    def _change(self, name: str, endpoint: Endpoint) -> None:
        self._own[name] = self._changes[name] = endpoint

    @staticmethod
    def _failing(state: EndpointState, now_ms: int, since_ms: int, detail: str) -> Endpoint:
        return Endpoint(state.value, now_ms, since_ms, detail=detail[:DETAIL_MAX_CHARS])
