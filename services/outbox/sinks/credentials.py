"""Files with keys and passwords. Their content is in no message and no log."""

import stat
from pathlib import Path

KEY_BYTES_MIN = 32
"""As long as the digest of HMAC-SHA256: RFC 2104, section 3, discourages shorter keys."""

FILE_BYTES_MAX = 4096


def load_key(path: str, variable: str) -> bytes:
    """The key in a file: its bytes as they are, a line's end included.

    Args:
        path: of the file.
        variable: the setting that names it, for messages.

    Raises:
        ValueError: the file cannot be read, or is shorter than KEY_BYTES_MIN or longer than FILE_BYTES_MAX bytes.
    """
    content = _read(path, variable)
    if len(content) < KEY_BYTES_MIN:
        raise ValueError(
            f"{variable}: {path} has {len(content)} bytes; write at least {KEY_BYTES_MIN} random ones into it, "
            f"for example with: openssl rand -out {path} {KEY_BYTES_MIN}"
        )
    return content


def load_password(path: str, variable: str) -> str:
    """The password in a file: its first line, without the line's end.

    Args:
        path: of the file.
        variable: the setting that names it, for messages.

    Raises:
        ValueError: the file cannot be read, is empty, too long or no UTF-8.
    """
    try:
        lines = _read(path, variable).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        # without its cause, which would show the bytes
        raise ValueError(f"{variable}: {path} is no UTF-8 text; write the password into it") from None
    if not lines or not lines[0]:
        raise ValueError(f"{variable}: the first line of {path} is empty; write the password into it")
    return lines[0]


def refuse_public(path: str, variable: str) -> None:
    """Refuse a file that everybody on the machine can read. Its group may: that is how containers are given secrets.

    Args:
        path: of the file.
        variable: the setting that names it, for messages.

    Raises:
        ValueError: it is such a file, or there is none.
    """
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
