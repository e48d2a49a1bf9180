"""Access control: authentication by API keys, and a rate limit for each client. Pure; clocks come in as arguments.

Invariant: in any span of time a client is admitted at most `burst` times and `rate` times for each second of it. A
client that never exceeds the rate, or waits as long as it was asked to, is never refused.
"""

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from services.gateway.audit import Audit
from services.gateway.domain import Refusal, RefusedError
from shared.http.keys import KeyRefusedError, Keys, Principal

__all__ = ["Access", "Principal", "RateLimiter"]

SECOND_NS: Final = 1_000_000_000
_MS_NS: Final = 1_000_000


class RateLimiter:
    """A token bucket for each client: `rate_per_s` tokens come back each second, and a full bucket has `burst`.

    A burst of 0 is the tokens of one second, and at least one. Only the time at which a bucket is full again is kept,
    which is equivalent (the generic cell rate algorithm, ITU-T I.371).
    """

    def __init__(self, rate_per_s: float, burst: int = 0) -> None:
        if not 0 < rate_per_s < math.inf or burst < 0:
            raise ValueError("the rate must be above 0, and the burst not below it")
        # In whole nanoseconds: sums of fractions of a second would refuse the last token of a burst
        self._interval_ns: Final = max(round(SECOND_NS / rate_per_s), 1)
        self._ahead_max_ns: Final = ((burst or math.ceil(rate_per_s)) - 1) * self._interval_ns
        self._full_at_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._full_at_ns)

    def take(self, client: str, now_ns: int) -> int:
        """Take a token at a monotonic time, and return 0; without one, return the nanoseconds until there is one."""
        full_at_ns = max(self._full_at_ns.get(client, now_ns), now_ns)
        wait_ns = full_at_ns - now_ns - self._ahead_max_ns
        if wait_ns > 0:
            return wait_ns
        self._full_at_ns[client] = full_at_ns + self._interval_ns
        return 0

    def charge(self, client: str, tokens: int, now_ns: int) -> None:
        """Take tokens that need not be there: the client's next request waits until they have come back."""
        self._full_at_ns[client] = max(self._full_at_ns.get(client, now_ns), now_ns) + tokens * self._interval_ns

    def keep(self, clients: AbstractSet[str]) -> None:
        """Forget all other clients, so that no more are remembered than exist."""
        self._full_at_ns = {client: at_ns for client, at_ns in self._full_at_ns.items() if client in clients}


class Access:
    """Decides whether a request is admitted, and as which principal.

    Args:
        keys: the valid ones.
        limiter: None is no limit.
        audit: counts admitted and refused requests.
        clock: a monotonic clock, nanoseconds.
        wall_clock: nanoseconds since 1970 UTC, by which keys expire.
    """

    def __init__(
        self,
        keys: Keys,
        limiter: RateLimiter | None,
        audit: Audit,
        clock: Callable[[], int],
        wall_clock: Callable[[], int],
    ) -> None:
        self._keys = keys
        self._limiter = limiter
        self._audit = audit
        self._clock = clock
        self._wall_clock = wall_clock

    def use(self, keys: Keys) -> None:
        """Replace the valid keys."""
        self._keys = keys
        if self._limiter is not None:
            self._limiter.keep(keys.clients)

    def admit(self, authorization: Sequence[str]) -> Principal:
        """Return the principal of a request with these Authorization headers.

        Raises RefusedError: it has no valid key, or its client asks above the rate. `principal` of the error is set
        where the key is known.
        """
        now_ms = self._wall_clock() // _MS_NS
        try:
            principal = self._keys.authenticate(authorization, now_ms)
        except KeyRefusedError as error:
            raise RefusedError(Refusal(error.reason), error.detail, principal=error.principal) from None
        if self._limiter is not None:
            wait_ns = self._limiter.take(principal.client, self._clock())
            if wait_ns > 0:
                after_s = -(-wait_ns // SECOND_NS)  # rounded up
                detail = f"you ask more often than you may: send it again after {after_s} s, and fewer each second"
                raise RefusedError(Refusal.RATE_EXCEEDED, detail, retry_after_s=after_s, principal=principal)
        self._audit.used(principal, now_ms)
        return principal

    def charge(self, principal: Principal, payments: int) -> None:
        """Count the further payments of an admitted batch against the rate of its client."""
        if self._limiter is not None:
            self._limiter.charge(principal.client, payments, self._clock())

    def refused(self, principal: Principal | None, route: str, reason: str) -> None:
        """Record a request that was refused, here or for what its principal may do; `route` is the template."""
        self._audit.refused(principal, route, reason, self._wall_clock() // _MS_NS)
