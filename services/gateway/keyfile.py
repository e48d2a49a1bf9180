"""The file of API keys, read again when it changes.

Invariant: keys are valid only as a whole file lists them. While the file is invalid or missing, the previous keys
remain valid, so that a typing error excludes no client. It is logged once, and counted.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.gateway.access import FILE_BYTES_MAX, Keys, KeysError, parse
from shared.telemetry import catalogue
from shared.telemetry.instruments import at_zero, counter

VARIABLE: Final = "ONCE_GATEWAY_API_KEYS_FILE"
LOOK_S: Final = 1.0  # from one look at the file to the next

_Version = tuple[int, int, int, int]
_UNREAD: Final[_Version] = (-1, -1, -1, -1)  # no file has it: the next look reads the file

API_KEYS_READ = counter(catalogue.API_KEYS_READ)
at_zero(API_KEYS_READ, ("taken", "refused"))

log = logging.getLogger(__name__)


class KeyFile:
    """A file of keys; KeysError if it cannot be read, or is no list of keys."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._version = self._look()
        self.keys = self._read()  # the valid ones

    async def watch(self, use: Callable[[Keys], None]) -> None:
        """Look at the file until cancelled, and pass keys that have changed to `use`."""
        told: tuple[_Version | None, str] | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            version = await asyncio.to_thread(self._look)
            if version == self._version:
                continue
            self._version = version  # before it is read: what is written meanwhile is seen at the next look
            try:
                self.keys = await asyncio.to_thread(self._read)
            except KeysError as error:
                if version is not None and isinstance(error.__cause__, OSError):
                    self._version = _UNREAD  # it may be read a moment later without a change: too many open files, say
                if told != (version, str(error)):
                    told = version, str(error)
                    API_KEYS_READ.labels("refused").inc()
                    log.error("api keys refused", extra={"reason": str(error), "keys_still_in_force": len(self.keys)})  # noqa: TRY400 # the message says what to change
                continue
            told = None
            use(self.keys)
            API_KEYS_READ.labels("taken").inc()
            log.info("api keys taken", extra={"clients": len(self.keys.clients), "keys": len(self.keys)})

    def _look(self) -> _Version | None:
        """A value that changes with the file or with who may read it; None while there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _read(self) -> Keys:
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise KeysError(
                f"{VARIABLE}: {self._path} cannot be read ({error.strerror}); name a readable file"
            ) from error
        try:
            return parse(content)
        except KeysError as error:
            raise KeysError(f"{VARIABLE}: {self._path}: {error}") from None
