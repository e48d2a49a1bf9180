"""Files that hold secrets: whole or not there, and readable by whom they are for alone.

What holds: whoever reads a file while it is replaced reads the old one or the new one; two that replace it at once both
do so wholly, and one stays; after a crash there is no empty file under the name.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600


def replace(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Write a file in place of an earlier one; it never has more readers than `mode` says."""
    new = _written(path, data, mode)
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
        with contextlib.suppress(FileExistsError):  # somebody else was first
            os.link(new, path)
    finally:
        new.unlink()


def read_password(path: Path) -> str:
    """The password in a file: its first line, as the outbox reads it."""
    return (path.read_text().splitlines() or [""])[0]


def _written(path: Path, data: bytes, mode: int) -> Path:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its owner's alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)
