"""Files: an effect as one JSON line, for local use and for checks.

What holds: a file has each effect_id once, however often and by however many processes it is delivered, because whoever
appends looks first, under a lock that all of them take. A line survives the death of its process; like the brokers, the
sink leaves it to the operating system when it reaches the disk.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable
from services.outbox.sinks.body import encode_body
from services.outbox.sinks.lines import BusyError, LogFile
from shared.events.effects import Channel, EffectRequest, channel_of

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
