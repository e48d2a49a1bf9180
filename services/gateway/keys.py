"""API keys: the file that lists them, and who has sent one. Pure.

The file has digests, never keys: who reads it can let nobody in. A plain SHA-256 is enough because `once keys new`
draws keys of 256 random bits, which nobody can try out; a password that a person thought up would not be safe here.
What holds: a key is compared in constant time (what the time of looking it up may tell is eight bytes of a digest, from
which no key can be had); no message shows a line of the file, which may be a key that was pasted by mistake.
"""

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

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
