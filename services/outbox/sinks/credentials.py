"""Files with keys and passwords. Their content is in no message and no log; ValueErrors name setting and path."""

import stat
from pathlib import Path

KEY_BYTES_MIN = 32  # the length of HMAC-SHA256's digest: RFC 2104, section 3, discourages shorter keys
FILE_BYTES_MAX = 4096


def load_key(path: str, variable: str) -> bytes:
    """The bytes of a file, a line end included; ValueError if there are not KEY_BYTES_MIN to FILE_BYTES_MAX of them."""
    content = _read(path, variable)
    if len(content) < KEY_BYTES_MIN:
        raise ValueError(
            f"{variable}: {path} has {len(content)} bytes; write at least {KEY_BYTES_MIN} random ones into it, "
            f"for example with: openssl rand -out {path} {KEY_BYTES_MIN}"
        )
    return content


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
        raise ValueError(f"{variable}: everybody can read {path}; take that away, with: chmod o= {path}")


def _read(path: str, variable: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{variable}: {path} cannot be read ({error.strerror}); name a readable file") from error
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{variable}: {path} has more than {FILE_BYTES_MAX} bytes; name a file with the secret alone")
    return content
