"""Files: an effect as one JSON line, for local use and for checks.

What holds: a file has each effect_id once, however often and by however many processes it is delivered, because whoever
appends looks first, under a lock that all of them take. A line survives the death of its process; like the brokers, the
sink leaves it to the operating system when it reaches the disk.

A file of JSON lines, one per effect, that several processes append to.

What holds: under the lock a file is read to its end before anything is appended, so no id is appended twice. A last
line without its end, left by a process that died while writing, is ended before the next one is written and counts only
if it is a whole JSON object.
"""

import asyncio
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable
from services.outbox.sinks.body import encode_body
from shared.events.codec import decoder
from shared.events.effects import EFFECT_ID_BYTES, Channel, EffectRequest, channel_of

_READ_BYTES = 1024 * 1024
_HEX = re.compile(rf"[0-9a-f]{{{2 * EFFECT_ID_BYTES}}}")


class BusyError(Exception):
    """Not now: another process holds the file's lock, or has just replaced the file."""


class _Line(msgspec.Struct):
    effect_id: str


_decode = decoder(_Line)


class LogFile:
    """One file. Nothing in here waits.

    Args:
        path: of the file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._inode = -1
        self._offset = 0
        self._fragment = b""
        self._known: set[bytes] = set()

    def catch_up(self) -> bool:
        """Read on, one bounded step; whether there may be more. Needs no lock: what stands in the file stays.

        Raises:
            OSError: the file cannot be opened or read.
        """
        self._open()
        chunk = os.pread(self._fd, _READ_BYTES, self._offset)
        self._take(chunk)
        return len(chunk) == _READ_BYTES

    def append(self, effect: bytes, line: bytes) -> bool:
        """Append a line unless its effect is there.

        Args:
            effect: the effect_id as bytes.
            line: one JSON object with that effect_id, ended by a line feed.

        Returns:
            Whether it was appended.

        Raises:
            BusyError: try again.
            OSError: the disk is full, the file cannot be opened; nothing of the line is left in it.
        """
        self._open()
        with self._locked():
            if os.stat(self.path).st_ino != self._inode:
                raise BusyError  # another file has the name since it was opened
            size = os.fstat(self._fd).st_size
            if size < self._offset:
                self._forget()
            while self._offset < size:
                chunk = os.pread(self._fd, _READ_BYTES, self._offset)
                if not chunk:
                    raise BusyError  # cut by somebody who takes no lock
                self._take(chunk)
            if self._fragment:
                self._write(b"\n")
            if effect in self._known:
                return False
            self._write(line)
        return True

    def close(self) -> None:
        """Close it; it can be used again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._forget()

    def _open(self) -> None:
        """Open the file that has the name now."""
        if self._fd >= 0:
            try:
                if os.stat(self.path).st_ino == self._inode:
                    return
            except FileNotFoundError:
                pass
            self.close()
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._inode = os.fstat(self._fd).st_ino

    def _forget(self) -> None:
        self._offset = 0
        self._fragment = b""
        self._known = set()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError from None
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take(self, chunk: bytes) -> None:
        """Learn the ids of what was read or written at the offset."""
        self._offset += len(chunk)
        *lines, self._fragment = (self._fragment + chunk).split(b"\n")
        for line in lines:
            effect_id = _effect_id(line)
            if effect_id is not None and _HEX.fullmatch(effect_id):
                self._known.add(bytes.fromhex(effect_id))

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing."""
        written = os.write(self._fd, data)
        if written < len(data):
            os.ftruncate(self._fd, self._offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._take(data)


def _effect_id(line: bytes) -> str | None:
    try:
        return _decode(line).effect_id
    except msgspec.DecodeError:
        return None


FILES_MAX = 64
_LOCK_POLL_S = 0.002


class FileSink:
    """Appends to `<directory>/<name>.jsonl` for a destination `file:<name>`.

    It holds the ids of every file that it has written to in memory: 100 MB for a million lines (measured).

    Args:
        directory: where the files are; it must be there.
        timeout_s: seconds that one call may wait for another process to release a file.
    """

    takes_keys = True
    calls_max = 64  # each takes microseconds, or waits for another process

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._files: dict[str, LogFile] = {}

    def circuit(self, destination: str) -> str:
        """Each file by itself."""
        return destination

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Append one line, unless it is there."""
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
            appended = await self._append(file, bytes.fromhex(request.effect_id), encode_body(request) + b"\n")
        except TimeoutError:
            return Retriable(f"{file.path.name} is locked by another process")
        except OSError as error:
            return Retriable(f"{file.path.name}: {error.strerror or type(error).__name__}")
        return Delivered("" if appended else "it was there already")

    async def _append(self, file: LogFile, effect: bytes, line: bytes) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            while file.catch_up():
                await asyncio.sleep(0)  # a long file is read bit by bit, so that nothing else is held up
            try:
                return file.append(effect, line)
            except BusyError:
                if loop.time() >= deadline:
                    raise TimeoutError from None
                await asyncio.sleep(_LOCK_POLL_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
