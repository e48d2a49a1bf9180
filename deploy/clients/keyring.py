"""The file of API keys as commands change it.

Invariant: of several commands at once, each changes the file that the others left. A reader sees the old file or the
new one, never a part, and one that the gateway would refuse is never written. Comments stay where they are.
"""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.security.files import PRIVATE, client_key, replace
from shared.events.clients import Scope, is_client
from shared.http.keys import Key, KeysError, is_entry, key_of, parse

_OTHERS: Final = 0o007


class KeyringError(Exception):
    """A change of the file is refused; the message says what to do."""


class Keyring:
    """A file of keys.

    Args:
        path: of the file; it need not exist.
        mode: of a file that is made.
    """

    def __init__(self, path: Path, mode: int = PRIVATE) -> None:
        self.path = path
        self._mode = mode

    def read(self) -> list[Key]:
        """Return the keys in the file's order, none without a file; KeyringError if it is not a list of keys."""
        return [] if not self.path.exists() else self._parse(self._lines())

    def issue(
        self,
        client: str,
        scopes: AbstractSet[Scope],
        expires_at_ms: int | None = None,
        *,
        first: bool | None = None,
        before: Callable[[Key], None] = lambda _key: None,
    ) -> tuple[str, Key]:
        """Issue a key; returns it with its entry in the file.

        Args:
            expires_at_ms: milliseconds since 1970 UTC; None for never.
            first: whether the client must have no key yet, or must have one; None for either.
            before: called with the entry before the file is changed; an error leaves the file as it was.

        Raises KeyringError: the name is invalid, or the client has a key where it should have none, or the reverse.
        """
        if not is_client(client):
            raise KeyringError(
                f"{client!r} cannot be a client's name: use 1 to 64 letters, digits, '.', '_' or '-', and begin with a "
                "letter or digit"
            )
        with self._locked():
            lines = self._lines() if self.path.exists() else []
            has_key = any(key.client == client for key in self._keys(lines))
            if first is True and has_key:
                raise KeyringError(f"{client} is a client already: `once clients add-key {client}` issues another key")
            if first is False and not has_key:
                raise KeyringError(f"{client} is not a client: `once clients add {client}` adds it")
            text = client_key()
            key = key_of(client, text, scopes, expires_at_ms)
            changed = [*lines, key.line]
            self._parse(changed)
            before(key)
            self._write(changed)
        return text, key

    def revoke(self, client: str, key_id: str | None = None) -> list[Key]:
        """Revoke a client's key, or all of them; returns their entries.

        Raises KeyringError: the client has no such key, or no other key would be left in the file.
        """
        with self._locked():
            lines = self._lines() if self.path.exists() else []
            keys = self._keys(lines)
            revoked = [key for key in keys if key.client == client and key_id in {None, key.id}]
            if not revoked:
                raise KeyringError(f"{client} has no key {key_id or 'in ' + str(self.path)}: see `once clients list`")
            if len(revoked) == len(keys):
                raise KeyringError(
                    "no key would be left, and the gateway does not work without one: add another client first, or "
                    "stop the gateway and delete the file"
                )
            gone = {key.id for key in revoked}
            self._write([line for line in lines if not is_entry(line) or self._parse([line])[0].id not in gone])
        return revoked

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise KeyringError(f"{error.filename or self.path}: {error.strerror}") from error

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise KeyringError(f"{self.path} cannot be read: {reason}") from None

    def _keys(self, lines: list[str]) -> list[Key]:
        """Return the keys of a file that may have none yet."""
        return self._parse(lines) if any(map(is_entry, lines)) else []

    def _parse(self, lines: list[str]) -> list[Key]:
        try:
            return list(parse("\n".join(lines).encode()))
        except KeysError as error:
            raise KeyringError(f"{self.path}: {error}") from None

    def _write(self, lines: list[str]) -> None:
        """Replace the file. It keeps its owner, group and mode, for the gateway may run as another user."""
        before = self.path.stat() if self.path.exists() else None
        mode = self._mode if before is None else stat.S_IMODE(before.st_mode) & ~_OTHERS
        owner = None if before is None else (before.st_uid, before.st_gid)
        other = None if owner == (os.geteuid(), os.getegid()) else owner
        replace(self.path, ("\n".join(lines) + "\n").encode(), mode, other)
