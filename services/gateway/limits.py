"""How often each client may ask: a token bucket for each. Pure; the clock comes in as an argument.

Of a bucket only the time is kept at which it is full again, which says the same (the generic cell rate algorithm,
ITU-T I.371): one number for each client. What holds: in any span of time a client is let in at most `burst` times and
`rate` times for each second of it; who never asks faster than that is never refused; who waits as told is let in.
"""

import math
from collections.abc import Set as AbstractSet
from typing import Final

SECOND_NS: Final = 1_000_000_000


class RateLimiter:
    """The buckets of all clients.

    Args:
        rate_per_s: tokens that come back each second; above 0.
        burst: tokens of a full bucket; 0 is those of one second, and at least one.

    Raises:
        ValueError: a rate or burst that lets nothing through.
    """

    def __init__(self, rate_per_s: float, burst: int = 0) -> None:
        if not 0 < rate_per_s < math.inf or burst < 0:
            raise ValueError("the rate must be above 0, and the burst not below it")
        # In whole nanoseconds: sums of fractions of a second would refuse the last token of a burst
        self._interval_ns: Final = max(round(SECOND_NS / rate_per_s), 1)
        self._ahead_max_ns: Final = ((burst or math.ceil(rate_per_s)) - 1) * self._interval_ns
        self._full_at_ns: dict[str, int] = {}

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._full_at_ns)

    def take(self, client: str, now_ns: int) -> int:
        """Take a token.

        Args:
            client: whose bucket.
            now_ns: a monotonic clock's time, nanoseconds.

        Returns:
            0 when there was one; else the nanoseconds until there is one, and none was taken.
        """
        full_at_ns = max(self._full_at_ns.get(client, now_ns), now_ns)
        wait_ns = full_at_ns - now_ns - self._ahead_max_ns
        if wait_ns > 0:
            return wait_ns
        self._full_at_ns[client] = full_at_ns + self._interval_ns
        return 0

    def keep(self, clients: AbstractSet[str]) -> None:
        """Forget all other clients: no more are remembered than there are."""
        self._full_at_ns = {client: at_ns for client, at_ns in self._full_at_ns.items() if client in clients}
