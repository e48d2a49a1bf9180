"""Access control: API keys, and a rate limit for each client. Pure; the clock comes in as an argument.

Invariants:
- A key is compared in constant time. The time of looking it up may reveal eight bytes of its digest, from which it
  cannot be derived. No message shows a line of the file, which may be a key that was pasted by mistake.
- In any span of time a client is admitted at most `burst` times and `rate` times for each second of it. A client that
  never exceeds the rate, or waits as long as it was asked to, is never refused.
- Without keys everybody is admitted, as one client together. That is for a gateway on loopback, which `__main__`
  ensures.

The file of keys has digests only, so that its readers gain no access. A plain SHA-256 is enough because `once keys new`
draws keys of 256 random bits, which cannot be guessed; a password that a person chose would not be safe here.
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

    def keep(self, clients: AbstractSet[str]) -> None:
        """Forget all other clients, so that no more are remembered than exist."""
        self._full_at_ns = {client: at_ns for client, at_ns in self._full_at_ns.items() if client in clients}


KEYS_MAX: Final = 10_000
KEYS_PER_CLIENT_MAX: Final = 2  # the old and the new one, while a client changes over
FILE_BYTES_MAX: Final = 2 * 1024 * 1024

_CLIENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_LINE: Final = re.compile(rf"({_CLIENT}):([0-9A-Fa-f]{{64}})")
_SELECTOR_BYTES: Final = 8


class KeysError(ValueError):
    """The text is no list of keys; the message names the line and what to change."""


class Key(NamedTuple):
    """A line of the file."""

    client: str
    digest: bytes  # SHA-256 of the key


class Keys:
    """The valid keys. Their digests differ in their first eight bytes, as those of random keys do."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_selector: Final = {key.digest[:_SELECTOR_BYTES]: key for key in keys}
        self.clients: Final = frozenset(key.client for key in self._by_selector.values())

    def __len__(self) -> int:
        return len(self._by_selector)

    def client_of(self, key: bytes) -> str | None:
        """The client with this key; None if it is unknown."""
        digest = sha256(key).digest()
        found = self._by_selector.get(digest[:_SELECTOR_BYTES])
        return found.client if found is not None and hmac.compare_digest(found.digest, digest) else None


def is_client(text: str) -> bool:
    """Whether it is a valid name of a client: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit."""
    return re.fullmatch(_CLIENT, text) is not None


def line_of(client: str, key: str) -> str:
    """The file's line for a client's key."""
    return f"{client}:{sha256(key.encode()).hexdigest()}"


def parse(content: bytes) -> Keys:
    """Parse a line `client:sha256` for each key; empty lines and lines that begin with # are skipped.

    Raises KeysError if it is no such list, or has no keys, more than KEYS_MAX, more than KEYS_PER_CLIENT_MAX of one
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
    """Decides whether a request is admitted.

    Args:
        keys: None asks for no key.
        limiter: None is no limit.
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
        """Replace the valid keys."""
        self._keys = keys
        if self._limiter is not None:
            self._limiter.keep(keys.clients)

    def admit(self, authorization: Sequence[str]) -> None:
        """Admit a request with all its Authorization headers; RefusedError without a known key, or above the rate."""
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
