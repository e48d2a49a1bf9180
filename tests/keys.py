"""The key with which tests send requests to a gateway: the operator's, with every scope."""

from pathlib import Path
from typing import Final

from shared.events.clients import OWNER_UNNAMED, Scope
from shared.http.keys import DEFAULT_SCOPES, Keys, key_of

KEY: Final = "once_the-operators-key-of-the-tests"
KEYS: Final = Keys([key_of(OWNER_UNNAMED, KEY, frozenset(Scope))])
AUTHORIZATION: Final = {"Authorization": f"Bearer {KEY}"}


def line_of(client: str, key: str, scopes: frozenset[Scope] = DEFAULT_SCOPES) -> str:
    """The line of a key in a file of keys."""
    return key_of(client, key, scopes).line


def key_file(directory: Path) -> str:
    """Write a file of KEYS and return its path."""
    path = directory / "api-keys"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(key.line for key in KEYS))
    return str(path)
