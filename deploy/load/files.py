"""Files as lines of bytes: plain or gzip, of a format detected from the first line."""

import gzip
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from deploy.load import pkdd99

_GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 2 * 1024 * 1024
"""No topic takes a record that long; bounds how much of a line is held."""


class LoadError(Exception):
    """A file cannot be loaded; the message says what to change."""


class Format(StrEnum):
    """A file's format."""

    PKDD99 = "pkdd99"
    JSONL = "jsonl"


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends, unpacked if it is gzip, whatever its name.

    Raises:
        LoadError: the file cannot be read to its end, or a line is longer than LINE_BYTES_MAX.
    """
    number = 0
    try:
        with path.open("rb") as plain:
            packed = plain.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX + 2):
                number += 1
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(line) > LINE_BYTES_MAX:
                    raise LoadError(f"{path}: line {number} is longer than {LINE_BYTES_MAX} bytes")
                yield line
    except (EOFError, zlib.error, OSError) as error:  # BadGzipFile is an OSError
        after = f" after line {number}" if number else ""
        raise LoadError(f"{path} cannot be read{after}: {getattr(error, 'strerror', None) or error}") from error


def detect(path: Path) -> Format:
    """The format of a file, by its first line: a header of the data set, or else JSON lines.

    Raises:
        LoadError: the file cannot be read, or its name ends in .csv and its header is another one.
    """
    first = next(lines_of(path), b"")
    if pkdd99.is_header(first):
        return Format.PKDD99
    if path.name.removesuffix(".gz").endswith(".csv"):
        raise LoadError(
            f"{path}: the header is none of the PKDD'99 transactions, {';'.join(pkdd99.COLUMNS)}; "
            "for JSON lines, say --format jsonl"
        )
    return Format.JSONL


def records_of(path: Path, file_format: Format) -> Iterator[bytes]:
    """The lines that hold records: without the header, empty ones included.

    Raises:
        LoadError: as `lines_of`, or the header is another one than the format's.
    """
    lines = lines_of(path)
    if file_format is Format.PKDD99 and not pkdd99.is_header(next(lines, b"")):
        raise LoadError(f"{path}: the first line is not {';'.join(pkdd99.COLUMNS)}")
    return lines
