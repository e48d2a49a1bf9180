"""Files of secrets: written atomically, with a given mode, and read by one function."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.security.files import make_once, read_password, replace


def test_a_reader_sees_a_whole_file_while_writers_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    texts = [bytes([65 + number]) * 50_000 for number in range(4)]
    replace(path, texts[0])

    def write(text: bytes) -> None:
        for _ in range(25):
            replace(path, text)

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, text) for text in texts]
        while not all(writer.done() for writer in writers):
            assert path.read_bytes() in texts
    for writer in writers:
        writer.result()
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_file_has_the_given_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for mode in (0o600, 0o440, 0o644):
            replace(tmp_path / "file", b"x", mode)
            assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
        make_once(tmp_path / "once", lambda: "x")
        assert stat.S_IMODE((tmp_path / "once").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        replace(tmp_path / "folder", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_concurrent_writers_make_a_secret_once(tmp_path: Path) -> None:
    path, values = tmp_path / "secret", iter(range(100))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make_once(path, lambda: str(next(values))), range(16)))
    kept = path.read_text()
    make_once(path, lambda: "another")
    assert path.read_text() == kept
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(("text", "password"), [("pw", "pw"), ("pw\n", "pw"), ("pw\nmore", "pw"), ("", "")])
def test_a_password_is_the_first_line(tmp_path: Path, text: str, password: str) -> None:
    path = tmp_path / "password"
    path.write_text(text)
    assert read_password(path) == password
