"""Who is let in: the key of a request, and the rate of its client. Pure; the clock comes in as an argument.

What holds: without keys everybody is let in, as one client together; that is for a gateway on loopback, which
`__main__` sees to. Nothing here keeps or shows a key.

How often each client may ask: a token bucket for each. Pure; the clock comes in as an argument.

Of a bucket only the time is kept at which it is full again, which says the same (the generic cell rate algorithm, ITU-T
I.371): one number for each client. What holds: in any span of time a client is let in at most `burst` times and `rate`
times for each second of it; who never asks faster than that is never refused; who waits as told is let in.

API keys: the file that lists them, and who has sent one. Pure.

The file has digests, never keys: who reads it can let nobody in. A plain SHA-256 is enough because `once keys new`
draws keys of 256 random bits, which nobody can try out; a password that a person thought up would not be safe here.
What holds: a key is compared in constant time (what the time of looking it up may tell is eight bytes of a digest, from
which no key can be had); no message shows a line of the file, which may be a key that was pasted by mistake.
"""

import hmac
import math
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from typing import Final, NamedTuple

from services.gateway.domain import Refusal, RefusedError

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


KEYS_MAX: Final = 10_000
KEYS_PER_CLIENT_MAX: Final = 2
"""The old and the new one, while a client changes over."""
FILE_BYTES_MAX: Final = 2 * 1024 * 1024

_CLIENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_LINE: Final = re.compile(rf"({_CLIENT}):([0-9A-Fa-f]{{64}})")
_SELECTOR_BYTES: Final = 8


class KeysError(ValueError):
    """The text is no list of keys; the message names the line and says what to change."""


class Key(NamedTuple):
    """A line of the file.

    Attributes:
        client: whose it is.
        digest: SHA-256 of the key.
    """

    client: str
    digest: bytes


class Keys:
    """The keys that are in force.

    Args:
        keys: whose digests differ in their first eight bytes, as those of different random keys do.

    Attributes:
        clients: all that have a key.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_selector: Final = {key.digest[:_SELECTOR_BYTES]: key for key in keys}
        self.clients: Final = frozenset(key.client for key in self._by_selector.values())

    def __len__(self) -> int:
        return len(self._by_selector)

    def client_of(self, key: bytes) -> str | None:
        """Who has this key; None where nobody has."""
        digest = sha256(key).digest()
        found = self._by_selector.get(digest[:_SELECTOR_BYTES])
        return found.client if found is not None and hmac.compare_digest(found.digest, digest) else None


def is_client(text: str) -> bool:
    """Whether a client may be called so: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit."""
    return re.fullmatch(_CLIENT, text) is not None


def line_of(client: str, key: str) -> str:
    """The file's line for a client's key."""
    return f"{client}:{sha256(key.encode()).hexdigest()}"


def parse(content: bytes) -> Keys:
    """The keys that a file lists: a line `client:sha256` for each, empty lines and lines that begin with # aside.

    Raises:
        KeysError: it is no such list, or lists nobody, more than KEYS_MAX keys, more than KEYS_PER_CLIENT_MAX of one
            client, or a key twice.
    """
    if len(content) > FILE_BYTES_MAX:
        raise KeysError(f"it has more than {FILE_BYTES_MAX} bytes: leave one line for each key in it")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        # without its cause, which would show the bytes
        raise KeysError("it is no UTF-8 text: write a line `client:sha256-of-the-key` for each key") from None
    line_of_selector: dict[bytes, int] = {}
    count_of_client: dict[str, int] = {}
    keys: list[Key] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        key = _key(number, line)
        first = line_of_selector.setdefault(key.digest[:_SELECTOR_BYTES], number)
        if first != number:
            raise KeysError(f"line {number} has the key of line {first}: make one for each with `once keys new`")
        count_of_client[key.client] = count_of_client.get(key.client, 0) + 1
        if count_of_client[key.client] > KEYS_PER_CLIENT_MAX:
            raise KeysError(
                f"line {number} is key {count_of_client[key.client]} of {key.client}: leave {KEYS_PER_CLIENT_MAX} at "
                "most, the old and the new one"
            )
        keys.append(key)
    if not 1 <= len(keys) <= KEYS_MAX:
        raise KeysError(f"it lists {len(keys)} keys: list 1 to {KEYS_MAX}, each as `once keys new` shows it")
    return Keys(keys)


def _key(number: int, line: str) -> Key:
    found = _LINE.fullmatch(line)
    if found is None:
        raise KeysError(
            f"line {number} is no `client:sha256-of-the-key`: write the line that `once keys new` shows; the key "
            "itself does not belong into the file"
        )
    return Key(found[1], bytes.fromhex(found[2]))


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
