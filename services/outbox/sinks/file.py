"""Files: an effect as one JSON line of `<directory>/<name>.jsonl`, for local use and for checks.

Invariant: a file has each effect_id once, however many processes deliver it. A process appends only under the file's
lock, after it has read the file to its end. A process that died while writing may leave a last line without its end:
the line is ended before the next one is written, and counts only if it is a whole JSON object. Like the brokers, the
sink leaves it to the operating system when a line reaches the disk.

The ids of a file's lines are on disk as well: memory does not grow with them.
"""

import asyncio
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Self

import msgspec

from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from services.outbox.sinks.webhook import encode_body
from shared.events.codec import decoder
from shared.events.effects import Channel, EffectRequest, channel_of

FILES_MAX = 64
_READ_BYTES = 256 * 1024
_LOCK_POLL_S = 0.002


class _Line(msgspec.Struct):
    effect_id: str


_decode = decoder(_Line)


_PRIVATE = """
    PRAGMA cache_size = -256;  -- KiB
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA locking_mode = EXCLUSIVE;
    CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID;
    BEGIN;
"""
"""Nothing is committed: no other process reads it."""


class TornLineError(OSError):
    """A part of a line was written, and could not be removed: the next append may end it as a whole line."""


class _Ids:
    """Ids in a private database on disk: 0.2 MB of memory for a million (measured).

    Its file has no name, so it is gone when the process is. After a sqlite3.Error, which a full disk causes, only
    `clear` may be called.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database: sqlite3.Connection | None = None

    def add(self, ids: Iterable[str]) -> None:
        if self._database is None:
            with NamedTemporaryFile(dir=self._directory, prefix=".ids-") as file:
                self._database = sqlite3.connect(file.name, isolation_level=None)
                self._database.executescript(_PRIVATE)
        self._database.executemany("INSERT OR IGNORE INTO ids VALUES (?)", ((one,) for one in ids))

    def __contains__(self, effect_id: str) -> bool:
        if self._database is None:
            return False
        return self._database.execute("SELECT 1 FROM ids WHERE id = ?", (effect_id,)).fetchone() is not None

    def clear(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None


class LogFile:
    """One file, and the ids in it.

    The file stays open while its ids are known, so its inode number names no other file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._known = _Ids(path.parent)
        self._forget()

    async def append(self, effect_id: str, line: bytes, timeout_s: float) -> bool:
        """Append the line of an effect, and return True; False if the effect is in the file already.

        Raises:
            TimeoutError: another process held the lock for `timeout_s` seconds.
            TornLineError: a part of the line is left in the file.
            OSError: the file cannot be opened, or the disk is full. Nothing of the line is left in it.
            sqlite3.Error: the ids in the file cannot be kept; the line is not in it. `close` must come next.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            self._open()
            while self._read_on():  # without the lock: lines that are in the file stay
                await asyncio.sleep(0)  # a long file must not hold up the event loop
                self._open()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                try:
                    if self._has_name():
                        return self._append(effect_id, line)
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            if loop.time() >= deadline_s:
                raise TimeoutError
            await asyncio.sleep(_LOCK_POLL_S)

    def close(self) -> None:
        """Close it; it can be used again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._forget()

    def _open(self) -> None:
        if not self._has_name():
            self.close()
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)

    def _has_name(self) -> bool:
        """Whether the open file still has the name: it may have been put aside and begun again."""
        try:
            return self._fd >= 0 and os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _append(self, effect_id: str, line: bytes) -> bool:
        if os.fstat(self._fd).st_size < self._offset:  # it was cut
            self._forget()
        while self._read_on():
            pass
        if self._fragment:
            self._write(b"\n")
            self._take(b"\n")
        if effect_id in self._known:
            return False
        self._write(line)
        try:
            self._take(line)
        except sqlite3.Error:
            self._forget()  # the line is in the file, and will be read
        return True

    def _forget(self) -> None:
        self._offset = 0
        self._fragment = b""
        self._known.clear()

    def _read_on(self) -> bool:
        """Read one bounded step; whether there may be more."""
        chunk = os.pread(self._fd, _READ_BYTES, self._offset)
        self._take(chunk)
        return len(chunk) == _READ_BYTES

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing; raise TornLineError if neither can be had."""
        if os.write(self._fd, data) < len(data):
            try:
                os.ftruncate(self._fd, self._offset)
            except OSError as error:
                raise TornLineError(error.errno, error.strerror) from error
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _take(self, chunk: bytes) -> None:
        """Learn the ids of what was read or written at the offset."""
        *lines, fragment = (self._fragment + chunk).split(b"\n")
        self._known.add(effect_id for line in lines if (effect_id := _effect_id(line)) is not None)
        # Only now: a chunk whose ids could not be kept is read again
        self._fragment = fragment
        self._offset += len(chunk)


def _effect_id(line: bytes) -> str | None:
    try:
        return _decode(line).effect_id
    except msgspec.DecodeError:
        return None


class FileSink:
    """Appends to `<directory>/<name>.jsonl` for a destination `file:<name>`. The directory must exist.

    A call waits for at most `timeout_s` seconds for another process to release a file.
    """

    takes_keys = True
    calls_max = 64  # each takes microseconds, or waits for another process

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._files: dict[str, LogFile] = {}

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Append one line, unless the file has it."""
        try:
            if channel_of(request.destination) is not Channel.FILE:
                return Refused("the destination is no file")
        except ValueError as error:
            return Refused(str(error))
        name = request.destination.partition(":")[2]
        file = self._files.get(name)
        if file is None:
            if len(self._files) == FILES_MAX:
                return Refused(f"there are {FILES_MAX} files already; use fewer file: destinations")
            file = self._files[name] = LogFile(self._directory / f"{name}.jsonl")
        try:
            appended = await file.append(request.effect_id, encode_body(request) + b"\n", self._timeout_s)
        except OSError as error:
            return _failure(file.path.name, error)
        except sqlite3.Error as error:
            file.close()  # its lines are read again
            return Retriable(f"{file.path.name}: the ids of its lines cannot be kept: {error}")
        return Delivered("" if appended else "it was there already")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _failure(name: str, error: OSError) -> Outcome:
    if isinstance(error, TimeoutError):
        return Retriable(f"{name} is locked by another process")
    if isinstance(error, TornLineError):
        return Unknown(f"{name}: {error.strerror}, and a part of the line is left in it")
    return Retriable(f"{name}: {error.strerror or type(error).__name__}")
