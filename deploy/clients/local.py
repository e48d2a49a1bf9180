"""The client `local`, which a stack makes for the operator's own requests and loads, and how loads name a client.

Invariant: its key outlives restarts. A key file without its line in the file of keys gets a new key.
"""

from pathlib import Path
from typing import Final, NamedTuple

from deploy.clients.keyring import Keyring
from deploy.security.files import PRIVATE, replace
from shared.events.clients import OWNER_UNNAMED, Scope, SubmittedBy
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


def ensure_local(files: ClientFiles, mode: int = PRIVATE) -> None:
    """Make the client and its key unless they are there; KeyringError if the file of keys is invalid.

    Args:
        mode: of files that are made.
    """
    keyring = Keyring(files.keys, mode)
    if files.local_key.exists():
        own = key_of(LOCAL, files.local_key.read_text().strip()).id
        if any(key.client == LOCAL and key.id == own for key in keyring.read()):
            return
    text, _ = keyring.issue(LOCAL, SCOPES)
    replace(files.local_key, text.encode(), mode)


def submitted_by(client: str, key_file: Path | None = None) -> SubmittedBy:
    """Name the client of records that a command writes to payments.raw itself, past the gateway.

    LOCAL and the operator may debit house accounts, any other client may not.

    Args:
        key_file: the client's key, whose id is recorded; None for no key.
    """
    key_id = "" if key_file is None else key_of(client, key_file.read_text().strip()).id
    return SubmittedBy(client, key_id, client in {LOCAL, OWNER_UNNAMED})
