"""A receiver's calls, one JSON line each, written before the answer, so that they outlive the receiver."""

import os
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

E = TypeVar("E", bound=msgspec.Struct)


def entries(path: Path, kind: type[E]) -> list[E]:
    """All whole lines of a journal, oldest first; none without a file."""
    if not path.exists():
        return []
    decode = msgspec.json.Decoder(kind).decode
    return [decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


class Journal(Generic[E]):
    """A journal to append to; open it as a context manager.

    Args:
        path: of the file; its entries are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._fd = -1

    def append(self, entry: E) -> None:
        """Write one entry, unbuffered."""
        os.write(self._fd, self._encode(entry) + b"\n")

    def __enter__(self) -> Self:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)
