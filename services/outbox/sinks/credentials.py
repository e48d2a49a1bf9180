"""Files with keys and passwords. Their content is in no message and no log; ValueErrors name setting and path."""

import logging
import stat
from pathlib import Path
from typing import Final

KEY_BYTES_MIN = 32  # the length of HMAC-SHA256's digest: RFC 2104, section 3, discourages shorter keys
FILE_BYTES_MAX = 4096
LOOK_S: Final = 1.0
"""Seconds from one look at the files of `SigningKeys` to the next."""

_Versions = tuple[tuple[int, int, int] | None, ...]

log = logging.getLogger(__name__)


def load_key(path: str, variable: str) -> bytes:
    """The bytes of a file, a line end included; ValueError if there are not KEY_BYTES_MIN to FILE_BYTES_MAX of them."""
    content = _read(path, variable)
    if len(content) < KEY_BYTES_MIN:
        raise ValueError(
            f"{variable}: {path} has {len(content)} bytes; write at least {KEY_BYTES_MIN} random ones into it, "
            f"for example with: openssl rand -out {path} {KEY_BYTES_MIN}"
        )
    return content


class SigningKeys:
    """The keys of ONCE_WEBHOOK_KEY_FILE and, where that file exists, ONCE_WEBHOOK_PREVIOUS_KEY_FILE.

    Both are read again when they change. While one cannot be used, the keys that were read before remain in force, and
    that is logged once. The first reading raises ValueError as `load_key`.
    """

    def __init__(self, key_file: str, previous_key_file: str) -> None:
        self._key_file = key_file
        self._previous_key_file = previous_key_file
        self._versions = self._look()
        self._keys = self._read()
        self._looked_s = float("-inf")

    def current(self, now_s: float) -> tuple[bytes, ...]:
        """The keys in force at `now_s` monotonic seconds, the new one first."""
        if now_s - self._looked_s < LOOK_S:
            return self._keys
        self._looked_s = now_s
        versions = self._look()
        if versions != self._versions:
            self._versions = versions  # before they are read: what is written meanwhile is seen at the next look
            try:
                self._keys = self._read()
            except ValueError as error:
                log.error("webhook keys refused", extra={"reason": str(error), "keys_still_in_force": len(self._keys)})  # noqa: TRY400 # the message says what to change
            else:
                log.info("webhook keys taken", extra={"keys": len(self._keys)})
        return self._keys

    def _look(self) -> _Versions:
        """A value that changes with a file."""
        return tuple(_version(path) for path in (self._key_file, self._previous_key_file))

    def _read(self) -> tuple[bytes, ...]:
        keys = [load_key(self._key_file, "ONCE_WEBHOOK_KEY_FILE")]
        if self._previous_key_file and Path(self._previous_key_file).exists():
            keys.append(load_key(self._previous_key_file, "ONCE_WEBHOOK_PREVIOUS_KEY_FILE"))
        return tuple(dict.fromkeys(keys))


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def load_password(path: str, variable: str) -> str:
    """The first line of a file, without its end; ValueError if it is empty, or the file is too long or not UTF-8."""
    try:
        lines = _read(path, variable).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        # without its cause, which would show the bytes
        raise ValueError(f"{variable}: {path} is no UTF-8 text; write the password into it") from None
    if not lines or not lines[0]:
        raise ValueError(f"{variable}: the first line of {path} is empty; write the password into it")
    return lines[0]


def refuse_public(path: str, variable: str) -> None:
    """Raise ValueError if everybody on the machine can read a file. Its group may: containers are given secrets so."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise ValueError(f"{variable}: {path} cannot be read ({error.strerror}); name a readable file") from error
    if mode & stat.S_IROTH:
        raise ValueError(f"{variable}: every user of this machine can read {path}: run chmod o= {path}")


def _read(path: str, variable: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{variable}: {path} cannot be read ({error.strerror}); name a readable file") from error
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{variable}: {path} has more than {FILE_BYTES_MAX} bytes; name a file with the secret alone")
    return content
