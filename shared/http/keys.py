"""API keys of clients, and the principals that they authenticate. Pure; the time comes in as an argument.

Invariants:
- A key is compared in constant time. The time of looking it up may reveal eight bytes of its digest, from which it
  cannot be derived. No message shows a line of the file, which may be a key that was pasted by mistake.
- A key without scopes in its line has DEFAULT_SCOPES and no expiry, as every key of former versions had.

The file of keys has digests only, so that its readers gain no access. A plain SHA-256 is enough because `once clients`
draws keys of 256 random bits, which cannot be guessed; a password that a person chose would not be safe here.
"""

import hmac
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from shared.events.clients import CLIENT_PATTERN, Scope, SubmittedBy

DEFAULT_SCOPES: Final = frozenset({Scope.PAYMENTS_WRITE, Scope.READ})
KEYS_MAX: Final = 10_000
KEYS_PER_CLIENT_MAX: Final = 8  # an old and a new one, while a client changes over, for a few sets of scopes
FILE_BYTES_MAX: Final = 4 * 1024 * 1024

_LINE: Final = re.compile(rf"({CLIENT_PATTERN.pattern}):([0-9A-Fa-f]{{64}})((?:\s+\S+)*)")
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_SELECTOR_BYTES: Final = 8
_SCHEME: Final = "bearer"


class Principal(NamedTuple):
    """The client that sent a request, by the key that it used.

    Attributes:
        client: its name.
        key_id: of the key, 16 hex digits.
        scopes: of the key.
    """

    client: str
    key_id: str
    scopes: AbstractSet[Scope]

    @property
    def submitted_by(self) -> SubmittedBy:
        """The principal as a raw record's header names it."""
        return SubmittedBy(self.client, self.key_id, Scope.HOUSE in self.scopes)


class KeysError(ValueError):
    """The text is not a list of keys; the message names the line and what to change."""


class KeyRefusal(StrEnum):
    """Reasons why a request authenticates no principal."""

    KEY_MISSING = "key_missing"
    KEY_UNKNOWN = "key_unknown"
    KEY_EXPIRED = "key_expired"


class KeyRefusedError(Exception):
    """A request that authenticates no principal.

    Attributes:
        reason: for machines.
        detail: for people: what to send.
        principal: of the expired key; None if the key is missing or unknown.
    """

    def __init__(self, reason: KeyRefusal, detail: str, principal: Principal | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.principal = principal


class Key(NamedTuple):
    """A line of the file.

    Attributes:
        client: its owner.
        digest: SHA-256 of the key.
        scopes: what the key may do.
        expires_at_ms: milliseconds since 1970 UTC; None if it never expires.
    """

    client: str
    digest: bytes
    scopes: AbstractSet[Scope] = DEFAULT_SCOPES
    expires_at_ms: int | None = None

    @property
    def id(self) -> str:
        """The first 16 hex digits of the digest."""
        return self.digest[:_SELECTOR_BYTES].hex()

    @property
    def line(self) -> str:
        """The file's line for this key. Scopes are in it even where they are the default."""
        expires = "" if self.expires_at_ms is None else f" expires={time_text(self.expires_at_ms)}"
        return f"{self.client}:{self.digest.hex()} scopes={','.join(sorted(self.scopes))}{expires}"


class Keys:
    """The valid keys. Their digests differ in their first eight bytes, as those of random keys do."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_selector: Final = {
            key.digest[:_SELECTOR_BYTES]: (key, Principal(key.client, key.id, key.scopes)) for key in keys
        }
        self.clients: Final = frozenset(key.client for key in self)

    def __len__(self) -> int:
        return len(self._by_selector)

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._by_selector.values())

    def next_expiry_ms(self, now_ms: int) -> int | None:
        """The earliest expiry that is still to come; None if no key will expire. Milliseconds since 1970 UTC."""
        to_come = (key.expires_at_ms for key in self if key.expires_at_ms is not None and key.expires_at_ms > now_ms)
        return min(to_come, default=None)

    def authenticate(self, authorization: Sequence[str], now_ms: int) -> Principal:
        """Return the principal of a request with these Authorization headers, or raise KeyRefusedError.

        Args:
            authorization: all such headers of the request.
            now_ms: milliseconds since 1970 UTC.
        """
        scheme, _, text = authorization[0].partition(" ") if len(authorization) == 1 else ("", "", "")
        if scheme.lower() != _SCHEME or not text.strip():
            raise KeyRefusedError(
                KeyRefusal.KEY_MISSING, "send your key, once, as Authorization: Bearer KEY; the operator issues keys"
            )
        digest = sha256(text.strip().encode(errors="surrogateescape")).digest()
        found = self._by_selector.get(digest[:_SELECTOR_BYTES])
        if found is None or not hmac.compare_digest(found[0].digest, digest):
            raise KeyRefusedError(
                KeyRefusal.KEY_UNKNOWN,
                "this key is not known: send all of it, as issued, or ask for another one",
            )
        key, principal = found
        if key.expires_at_ms is not None and now_ms >= key.expires_at_ms:
            raise KeyRefusedError(
                KeyRefusal.KEY_EXPIRED,
                f"this key expired at {time_text(key.expires_at_ms)}: ask the operator for another one",
                principal,
            )
        return principal


def key_of(client: str, key: str, scopes: AbstractSet[Scope] = DEFAULT_SCOPES, expires_at_ms: int | None = None) -> Key:
    """The file's entry for a client's key."""
    return Key(client, sha256(key.encode()).digest(), scopes, expires_at_ms)


def time_text(at_ms: int) -> str:
    """A time as the file writes it, `2027-01-01T00:00:00Z`, from milliseconds since 1970 UTC."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime(_TIME)


def parse_time(text: str) -> int:
    """Milliseconds since 1970 UTC of a time `2027-01-01T00:00:00Z`; ValueError if it is not written like that."""
    return int(datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()) * 1000


def parse_scopes(text: str) -> frozenset[Scope]:
    """Scopes from a list that commas separate; ValueError if one is unknown or there is none."""
    return frozenset(Scope(name) for name in text.split(","))


def parse(content: bytes) -> Keys:
    """Parse a line `client:sha256 [scopes=...] [expires=...]` for each key.

    Empty lines are skipped, and those that begin with #.

    Raises KeysError if it is not such a list, or has no keys, more than KEYS_MAX, more than KEYS_PER_CLIENT_MAX of one
    client, or a key twice.
    """
    if len(content) > FILE_BYTES_MAX:
        raise KeysError(f"it has more than {FILE_BYTES_MAX} bytes: leave one line for each key in it")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        # without its cause, which would show the bytes
        raise KeysError("it is no UTF-8 text: write a line `client:sha256-of-the-key` for each key") from None
    found = [(number, _key(number, line.strip())) for number, line in enumerate(lines, start=1) if is_entry(line)]
    _check(found)
    if not 1 <= len(found) <= KEYS_MAX:
        raise KeysError(f"it lists {len(found)} keys: list 1 to {KEYS_MAX}, as `once clients` writes them")
    return Keys(key for _, key in found)


def is_entry(line: str) -> bool:
    """Whether a line of the file is for a key: not empty, and not a comment."""
    return bool(line.strip()) and not line.strip().startswith("#")


def _check(keys: Collection[tuple[int, Key]]) -> None:
    line_of_id: dict[str, int] = {}
    count_of_client: dict[str, int] = {}
    for number, key in keys:
        first = line_of_id.setdefault(key.id, number)
        if first != number:
            raise KeysError(f"line {number} has the key of line {first}: make one for each with `once clients`")
        count = count_of_client[key.client] = count_of_client.get(key.client, 0) + 1
        if count > KEYS_PER_CLIENT_MAX:
            raise KeysError(
                f"line {number} is key {count} of {key.client}: leave {KEYS_PER_CLIENT_MAX} at most, and revoke the "
                "old ones"
            )


def _key(number: int, line: str) -> Key:
    found = _LINE.fullmatch(line)
    if found is None:
        raise KeysError(
            f"line {number} is no `client:sha256-of-the-key`: write the line that `once clients` makes; the key itself "
            "does not belong into the file"
        )
    client, digest, further = found.groups()
    scopes, expires_at_ms = _attributes(number, further.split())
    return Key(client, bytes.fromhex(digest), scopes, expires_at_ms)


def _attributes(number: int, words: Sequence[str]) -> tuple[AbstractSet[Scope], int | None]:
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if len(given) != len(words) or given.keys() - {"scopes", "expires"}:
        raise KeysError(f"line {number}: after the digest, write scopes=... and expires=..., each once at most")
    try:
        scopes = parse_scopes(given["scopes"]) if "scopes" in given else DEFAULT_SCOPES
    except ValueError:
        raise KeysError(
            f"line {number} has a scope that does not exist: write some of {', '.join(Scope)}, separated by commas"
        ) from None
    try:
        return scopes, parse_time(given["expires"]) if "expires" in given else None
    except ValueError:
        raise KeysError(f"line {number}: write the expiry as expires=2027-01-01T00:00:00Z") from None
