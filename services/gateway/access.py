"""Who is let in: the key of a request, and the rate of its client. Pure; the clock comes in as an argument.

What holds: without keys everybody is let in, as one client together; that is for a gateway on loopback, which
`__main__` sees to. Nothing here keeps or shows a key.
"""

from collections.abc import Callable, Sequence
from typing import Final

from services.gateway.domain import Refusal, RefusedError
from services.gateway.keys import Keys
from services.gateway.limits import SECOND_NS, RateLimiter

_SCHEME: Final = "bearer"
_ANYBODY: Final = ""


class Access:
    """Decides whether a request is let in.

    Args:
        keys: in force at first; None asks nobody for one.
        limiter: of the clients; None is no limit.
        clock: a monotonic clock, nanoseconds.
    """

    def __init__(self, keys: Keys | None, limiter: RateLimiter | None, clock: Callable[[], int]) -> None:
        self._keys = keys
        self._limiter = limiter
        self._clock = clock

    @property
    def asks_for_keys(self) -> bool:
        """Whether a request needs a key."""
        return self._keys is not None

    def use(self, keys: Keys) -> None:
        """Take these keys instead of those before."""
        self._keys = keys
        if self._limiter is not None:
            self._limiter.keep(keys.clients)

    def admit(self, authorization: Sequence[str]) -> None:
        """Let a request in.

        Args:
            authorization: all its Authorization headers.

        Raises:
            RefusedError: it has no key or one that nobody has, or its client asks too often.
        """
        client = _ANYBODY if self._keys is None else _client(self._keys, authorization)
        if self._limiter is None:
            return
        wait_ns = self._limiter.take(client, self._clock())
        if wait_ns > 0:
            after_s = -(-wait_ns // SECOND_NS)  # rounded up
            detail = f"you ask more often than you may: send it again after {after_s} s, and fewer each second"
            raise RefusedError(Refusal.RATE_EXCEEDED, detail, retry_after_s=after_s)


def _client(keys: Keys, authorization: Sequence[str]) -> str:
    scheme, _, key = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
    if scheme.lower() != _SCHEME or not key.strip():
        raise RefusedError(
            Refusal.KEY_MISSING,
            "send your key, once, as Authorization: Bearer KEY; who runs this gateway gives you one",
        )
    client = keys.client_of(key.strip().encode(errors="surrogateescape"))
    if client is None:
        raise RefusedError(
            Refusal.KEY_UNKNOWN,
            "this key is not known: send all of it, as you were given it, or ask who runs this gateway for another one",
        )
    return client
