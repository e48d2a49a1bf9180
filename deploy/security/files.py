"""Secrets: random values, and the files that hold them.

Invariant: a reader sees the old file or the new one, never a part. Of two concurrent replacements one stays, whole.
After a crash there is no empty file under the name.
"""

import base64
import contextlib
import os
import secrets
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
CLIENT_KEY_PREFIX: Final = "once_"
"""Prefix by which a gateway client's key is found where it does not belong: in a repository, in a log."""
_SECRET_BYTES: Final = 32


def secret() -> str:
    """A password, or a key to sign with."""
    return secrets.token_hex(_SECRET_BYTES)


def client_key() -> str:
    return CLIENT_KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def kafka_uuid() -> str:
    """An id of a cluster or a log directory, as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def replace(path: Path, data: bytes, mode: int = PRIVATE, owner: tuple[int, int] | None = None) -> None:
    """Write a file in place of an earlier one; it never has more readers than `mode` says.

    Args:
        owner: user and group of the file; None for this process's. If they cannot be set, the earlier file stays.
    """
    new = _written(path, data, mode, owner)
    try:
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def make_once(path: Path, value: Callable[[], str]) -> None:
    """Write a file that its owner alone can read, unless it is there: what it holds outlives restarts."""
    if path.exists():
        return
    new = _written(path, value().encode(), PRIVATE)
    try:
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(new, path)
    finally:
        new.unlink()


def read_password(path: Path) -> str:
    """The password in a file: its first line, as the outbox reads it."""
    return (path.read_text().splitlines() or [""])[0]


def _written(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> Path:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its owner's alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)
