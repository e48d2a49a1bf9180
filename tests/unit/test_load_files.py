"""Files as lines: compression and format are detected from the content; errors say what is wrong."""

import gzip
from pathlib import Path

import pytest

from deploy.load.files import LINE_BYTES_MAX, Format, LoadError, detect, lines_of, records_of

HEADER = b"trans_id;account_id;date;type;operation;amount;balance;k_symbol;bank;account"


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data"])
def test_compressed_and_plain_files_have_the_same_lines(tmp_path: Path, name: str) -> None:
    content = b'{"a":1}\n\xff\x00 odd bytes\r\n\nlast without an end'
    expected = [b'{"a":1}', b"\xff\x00 odd bytes", b"", b"last without an end"]
    (tmp_path / name).write_bytes(content)
    assert list(lines_of(tmp_path / name)) == expected
    (tmp_path / name).write_bytes(gzip.compress(content))
    assert list(lines_of(tmp_path / name)) == expected


def test_format_is_detected_from_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "odd-name"
    path.write_bytes(HEADER + b"\n1;2\n")
    assert detect(path) is Format.PKDD99
    assert list(records_of(path, Format.PKDD99)) == [b"1;2"]
    path.write_bytes(gzip.compress(b'{"payment_id":"1"}\n'))
    assert detect(path) is Format.JSONL
    path.write_bytes(b"")
    assert detect(path) is Format.JSONL
    assert list(records_of(path, Format.JSONL)) == []


def test_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv.gz"
    path.write_bytes(gzip.compress(b"a;b\n1;2\n"))
    with pytest.raises(LoadError, match="header is none of the PKDD'99"):
        detect(path)
    with pytest.raises(LoadError, match="first line is not trans_id"):
        list(records_of(path, Format.PKDD99))


def test_truncated_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"line\n" * 100_000)[:-20])
    with pytest.raises(LoadError, match=r"cut\.gz cannot be read after line \d+"):
        list(lines_of(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"none\.csv cannot be read: No such file"):
        list(lines_of(tmp_path / "none.csv"))


def test_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"ok\n" + b"x" * (LINE_BYTES_MAX + 1))
    with pytest.raises(LoadError, match="line 2 is longer"):
        list(lines_of(path))
    path.write_bytes(b"x" * LINE_BYTES_MAX + b"\r\n")
    assert [len(line) for line in lines_of(path)] == [LINE_BYTES_MAX]
