"""Files on disk: written in one step, flushed, and measured."""

import hashlib
import os
from pathlib import Path

_CHUNK_BYTES = 1024 * 1024


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new one, and it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure(path: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 of a file."""
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()
