"""The client `local`, which a stack makes for the operator's own requests and loads.

Invariant: its key outlives restarts. A key file without its line in the file of keys gets a new key.
"""

from pathlib import Path
from typing import Final, NamedTuple

from deploy.clients.keyring import Keyring
from deploy.security.files import PRIVATE, replace
from shared.events.clients import Scope
from shared.http.keys import key_of

LOCAL: Final = "local"
SCOPES: Final = frozenset(Scope)


class ClientFiles(NamedTuple):
    """The files of the local stack's clients.

    Attributes:
        keys: the file of keys that the gateway reads.
        local_key: the key of LOCAL alone.
    """

    keys: Path
    local_key: Path


def client_files(directory: Path) -> ClientFiles:
    """The files in a stack's directory."""
    data = directory / "data"
    return ClientFiles(data / "clients" / "api-keys", data / "local.key")


def ensure_local(files: ClientFiles) -> None:
    """Make the client and its key unless they are there; KeyringError if the file of keys is invalid."""
    keyring = Keyring(files.keys)
    if files.local_key.exists():
        own = key_of(LOCAL, files.local_key.read_text()).id
        if any(key.client == LOCAL and key.id == own for key in keyring.read()):
            return
    text, _ = keyring.issue(LOCAL, SCOPES)
    replace(files.local_key, text.encode(), PRIVATE)
