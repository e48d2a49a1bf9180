"""The file of API keys, read again when it changes.

Invariant: keys are valid only as a whole file lists them. A file that stays missing, unreadable or invalid ends the
watch within READS_MAX looks, and so the service: otherwise a revocation could fail to take effect unnoticed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from shared.http.keys import FILE_BYTES_MAX, Keys, KeysError, parse
from shared.telemetry import catalogue
from shared.telemetry.instruments import ReadGauge, Reading, at_zero, counter

LOOK_S: Final = 1.0  # from one look at the file to the next
READS_MAX: Final = 3  # a file is read as often before it ends the watch: an editor may write it in several steps

_Version = tuple[int, int, int, int]

API_KEYS_READ = counter(catalogue.API_KEYS_READ)
at_zero(API_KEYS_READ, ("taken", "refused"))
API_KEY_EXPIRY = ReadGauge(catalogue.API_KEY_EXPIRY)

log = logging.getLogger(__name__)


class KeyFile:
    """A file of keys.

    Args:
        path: of the file.
        variable: the setting that names it, for messages.

    Raises KeysError: it cannot be read, or is not a list of keys.
    """

    def __init__(self, path: str, variable: str) -> None:
        self._path = Path(path)
        self._variable = variable
        self._version = self._look()
        self.keys = self._read()  # the valid ones

    async def watch(self, use: Callable[[Keys], None]) -> None:
        """Look at the file until cancelled, and pass keys that have changed to `use`.

        Raises KeysError: the file is missing, unreadable or invalid at READS_MAX looks in a row.
        """
        remove = API_KEY_EXPIRY.add(self._expiry)
        try:
            await self._watch(use)
        finally:
            remove()

    async def _watch(self, use: Callable[[Keys], None]) -> None:
        failures = 0
        while True:
            await asyncio.sleep(LOOK_S)
            version = await asyncio.to_thread(self._look)
            if version == self._version and not failures:
                continue
            self._version = version  # before it is read: what is written meanwhile is seen at the next look
            try:
                self.keys = await asyncio.to_thread(self._read)
            except KeysError as error:
                failures += 1
                API_KEYS_READ.labels("refused").inc()
                log.warning("api keys refused", extra={"reason": str(error), "reads_left": READS_MAX - failures})
                if failures >= READS_MAX:
                    raise
                continue
            failures = 0
            use(self.keys)
            API_KEYS_READ.labels("taken").inc()
            log.info("api keys taken", extra={"clients": len(self.keys.clients), "keys": len(self.keys)})

    def _expiry(self) -> Iterable[Reading]:
        expiry_ms = self.keys.next_expiry_ms(time.time_ns() // 1_000_000)
        return [] if expiry_ms is None else [((), expiry_ms / 1000)]

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
                f"{self._variable}: {self._path} cannot be read ({error.strerror}); name a readable file"
            ) from error
        try:
            return parse(content)
        except KeysError as error:
            raise KeysError(f"{self._variable}: {self._path}: {error}") from None
