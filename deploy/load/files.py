"""Files as lines of bytes, plain or gzip, of a format detected from the first line; and a first look at them."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from deploy.load import pkdd99
from deploy.load.oracle import Chain, Histories, chains
from shared.events.reference import ExpectedBalance

_GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 2 * 1024 * 1024
"""No topic takes a record that long; bounds how much of a line is held."""


class LoadError(Exception):
    """A file cannot be loaded; the message says what to change."""


class Format(StrEnum):
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
        LoadError: as `lines_of`, or its name ends in .csv and its header is another one.
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


class Survey(msgspec.Struct):
    """Contents of a file; for the data set, its client accounts and their expected balances.

    Attributes:
        records: lines that are not empty.
        accounts: in the order of their first transactions.
        expected: the new expected balances by account.
        unexplained: accounts whose balances form no chain, or no single one, or none that continues the file before:
            their expected balance is left as it is, or missing.
    """

    records: int = 0
    empty_lines: int = 0
    accounts: list[str] = []
    expected: dict[str, ExpectedBalance] = {}
    unexplained: list[str] = []


def survey(path: Path, file_format: Format, known: Mapping[str, ExpectedBalance]) -> Survey:
    """Read a file once; raises as `records_of`.

    It may continue the expected balances of files loaded before, `known`. The same file again leaves them as they are.
    """
    result = Survey()
    histories = Histories()
    for line in records_of(path, file_format):
        if not line:
            result.empty_lines += 1
            continue
        result.records += 1
        if file_format is Format.PKDD99:
            _note(histories, line)
    result.accounts = list(histories)
    before = {account: Chain(balance.opening_minor, balance.closing_minor) for account, balance in known.items()}
    for account, chain in chains(histories, before):
        if chain is not None:
            result.expected[account] = ExpectedBalance(
                pkdd99.CURRENCY, chain.opening_minor, chain.closing_minor, path.name
            )
        elif account not in known or known[account].file != path.name:
            result.unexplained.append(account)
    return result


def _note(histories: Histories, line: bytes) -> None:
    try:
        transaction = pkdd99.parse_line(line)
    except pkdd99.MalformedLineError:
        return  # it goes in as it is, and into no account's history
    histories.add(transaction.account_id, transaction.day, transaction.change_minor, transaction.balance_minor)
