"""The file sink on a real file: each effect once, despite other writers and torn lines."""

import asyncio
import fcntl
import os
import resource
import signal
import sqlite3
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.process import ManagedProcess
from deploy.verification import effect_ids as ids_in
from services.outbox.outcomes import Delivered, Refused, Retriable
from services.outbox.sinks import file
from services.outbox.sinks import file as file_module
from services.outbox.sinks.file import FileSink
from services.outbox.sinks.webhook import encode_body
from tests.harness import ROOT, wait_until
from tests.sinks.effects import effect

RECEIPTS = "file:receipts"
TIMEOUT_S = 0.5

_WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from services.outbox.sinks.file import FileSink
from tests.sinks.effects import effect

async def main() -> None:
    numbers = range(int(sys.argv[2]))
    async with FileSink(Path(sys.argv[1]), 30.0) as sink:
        for number in itertools.cycle(numbers) if sys.argv[3] == "until killed" else numbers:
            print(type(await sink.deliver(effect(number, "file:receipts"))).__name__)

asyncio.run(main())
"""


def effect_ids(path: Path) -> list[str]:
    """Return the effect ids that the verifier reads from a file."""
    return list(ids_in(path))


@pytest_asyncio.fixture
async def sink(tmp_path: Path) -> AsyncIterator[FileSink]:
    """A sink that writes to the test's directory."""
    async with FileSink(tmp_path, TIMEOUT_S) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The sink's file."""
    return tmp_path / "receipts.jsonl"


@pytest.fixture
def occupied(path: Path) -> Path:
    """The path of the sink's file, occupied by a directory."""
    path.mkdir()
    return path


def leave(path: Path, content: bytes) -> None:
    """Write content as another process may have left it."""
    path.write_bytes(content)


def content(path: Path) -> bytes:
    return path.read_bytes()


def line(number: int) -> bytes:
    return encode_body(effect(number, RECEIPTS)) + b"\n"


def others(count: int) -> bytes:
    """Return lines of so many other effects."""
    return b"".join(b'{"effect_id":"f%031x"}\n' % number for number in range(count))


def ids(*numbers: int) -> list[str]:
    return [effect(number, RECEIPTS).effect_id for number in numbers]


async def deliver(sink: FileSink, *numbers: int) -> list[str]:
    """Deliver these effects and return the detail of each outcome."""
    outcomes = [await sink.deliver(effect(number, RECEIPTS)) for number in numbers]
    return [outcome.detail if isinstance(outcome, Delivered) else repr(outcome) for outcome in outcomes]


async def test_a_line_is_the_body_of_the_effect(sink: FileSink, path: Path) -> None:
    assert await deliver(sink, 1, 2, 1) == ["", "", "it was there already"]
    assert content(path) == line(1) + line(2)


async def test_what_another_process_wrote_is_seen(sink: FileSink, path: Path) -> None:
    leave(path, line(1))
    assert await deliver(sink, 1, 2) == ["it was there already", ""]
    with path.open("ab") as other:
        other.write(line(3))
    assert await deliver(sink, 3, 4) == ["it was there already", ""]
    assert effect_ids(path) == ids(1, 2, 3, 4)


async def test_a_torn_line_is_terminated_and_does_not_count(sink: FileSink, path: Path) -> None:
    leave(path, line(1) + line(2)[:40])
    assert effect_ids(path) == ids(1)
    assert await deliver(sink, 2, 1) == ["", "it was there already"]
    assert content(path) == line(1) + line(2)[:40] + b"\n" + line(2)
    assert effect_ids(path) == ids(1, 2)


async def test_a_line_that_lacks_only_its_newline_counts(sink: FileSink, path: Path) -> None:
    leave(path, line(1) + line(2)[:-1])
    assert await deliver(sink, 2, 3) == ["it was there already", ""]
    assert content(path) == line(1) + line(2) + line(3)


async def test_foreign_lines_are_kept(sink: FileSink, path: Path) -> None:
    foreign = b'\n{}\n[1]\nwords\n{"effect_id":"no hex"}\n{"effect_id":7}\n\xff\xfe\n'
    leave(path, foreign)
    assert await deliver(sink, 1) == [""]
    assert content(path) == foreign + line(1)
    assert effect_ids(path) == ["no hex", *ids(1)]


async def test_a_long_file_is_read_in_pieces(sink: FileSink, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_READ_BYTES", 100)  # ends within lines
    leave(path, b"".join(line(number) for number in range(50)))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert await deliver(sink, 49) == ["it was there already"]
    assert turns > 100  # 15,000 bytes
    task.cancel()
    outcomes = await asyncio.gather(*(sink.deliver(effect(number, RECEIPTS)) for number in range(52)))
    assert [outcome.detail for outcome in outcomes] == ["it was there already"] * 50 + ["", ""]
    assert effect_ids(path) == ids(*range(52))


async def test_a_rotated_file_is_created_again(sink: FileSink, path: Path, tmp_path: Path) -> None:
    assert await deliver(sink, 1) == [""]
    os.rename(path, tmp_path / "receipts.1")
    assert await deliver(sink, 1, 2) == ["", ""]
    assert effect_ids(tmp_path / "receipts.1") == ids(1)
    assert effect_ids(path) == ids(1, 2)
    leave(path, line(2))  # truncated in place
    assert await deliver(sink, 1, 2) == ["", "it was there already"]
    assert effect_ids(path) == ids(2, 1)


async def test_a_file_that_is_rotated_at_the_last_moment(
    sink: FileSink, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await deliver(sink, 1) == [""]
    flock, rotated = fcntl.flock, tmp_path / "receipts.1"

    def late(fd: int, operation: int) -> None:
        if not os.path.lexists(rotated):
            os.rename(path, rotated)
            leave(path, line(2))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert await deliver(sink, 2, 3) == ["it was there already", ""]
    assert (effect_ids(rotated), effect_ids(path)) == (ids(1), ids(2, 3))


async def test_a_wait_for_a_locked_file_is_bounded(sink: FileSink, path: Path) -> None:
    leave(path, b"")
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        outcome = await sink.deliver(effect(1, RECEIPTS))
        assert outcome == Retriable("receipts.jsonl is locked by another process")
        waiting = asyncio.create_task(deliver(sink, 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert await waiting == [""]
    assert effect_ids(path) == ids(1)


async def test_a_full_disk_leaves_no_part_of_a_line(
    sink: FileSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await deliver(sink, 1) == [""]
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        assert await sink.deliver(effect(2, RECEIPTS)) == Retriable("receipts.jsonl: No space left on device")
    assert content(path) == line(1)
    assert await deliver(sink, 2) == [""]
    assert content(path) == line(1) + line(2)


async def test_memory_does_not_grow_with_the_file(sink: FileSink, path: Path) -> None:
    leave(path, others(100_000))
    tracemalloc.start()
    try:
        assert await deliver(sink, 1) == [""]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000  # a set of them takes 13 MB
    assert os.listdir(path.parent) == [path.name]


async def test_a_full_disk_for_the_ids_of_lines_makes_no_effect_twice(sink: FileSink, path: Path) -> None:
    leave(path, others(20_000) + line(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        outcome = await sink.deliver(effect(1, RECEIPTS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert outcome == Retriable("receipts.jsonl: the ids of its lines cannot be kept: disk I/O error")
    assert await deliver(sink, 1, 2, 2) == ["it was there already", "", "it was there already"]


async def test_ids_without_a_file_for_them_are_read_again(sink: FileSink, path: Path) -> None:
    leave(path, line(1))
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # for the sink's file, and no other
    try:
        outcome = await sink.deliver(effect(1, RECEIPTS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert outcome == Retriable("receipts.jsonl: Too many open files")
    assert await deliver(sink, 1, 2) == ["it was there already", ""]


async def test_a_line_whose_id_cannot_be_kept_is_written_once(
    sink: FileSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await deliver(sink, 1) == [""]
    take = file.LogFile._take

    def full(log: file.LogFile, chunk: bytes) -> None:
        if chunk:
            raise sqlite3.OperationalError("database or disk is full")
        take(log, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(file.LogFile, "_take", full)
        assert await deliver(sink, 2) == [""]
    assert await deliver(sink, 1, 2, 3) == ["it was there already", "it was there already", ""]
    assert effect_ids(path) == ids(1, 2, 3)


async def test_a_file_that_cannot_be_opened_is_retriable(sink: FileSink, occupied: Path) -> None:
    assert await sink.deliver(effect(1, RECEIPTS)) == Retriable("receipts.jsonl: Is a directory")


@pytest.mark.parametrize(
    "destination", ["file:../receipts", "file:/tmp/x", "file:", "file:A", "https://h/", "receipts"]
)
async def test_an_invalid_file_name_is_refused(sink: FileSink, tmp_path: Path, destination: str) -> None:
    assert isinstance(await sink.deliver(effect(1, destination)), Refused)
    assert os.listdir(tmp_path) == []


async def test_files_are_bounded(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "FILES_MAX", 2)
    outcomes = [await sink.deliver(effect(1, f"file:{name}")) for name in ("a", "b", "c", "a")]
    assert [type(outcome) for outcome in outcomes] == [Delivered, Delivered, Refused, Delivered]


def test_processes_that_are_killed_while_they_write_make_each_effect_once(tmp_path: Path, path: Path) -> None:
    count = 3000
    writers = [
        ManagedProcess(
            f"writer-{number}",
            [sys.executable, "-c", _WRITER, str(tmp_path), str(count), until],
            {"PYTHONUNBUFFERED": "1"},
            tmp_path / f"writer-{number}.log",
            cwd=ROOT,
        )
        for number, until in enumerate(["until killed", "written", "written"])
    ]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: path.exists() and len(effect_ids(path)) > count // 10, "the processes write")
        writers[0].kill()
        assert [writer.wait(60) for writer in writers] == [-signal.SIGKILL, 0, 0]
    finally:
        for writer in writers:
            writer.kill()
    assert {out for writer in writers[1:] for out in writer.log_path.read_text().split()} == {"Delivered"}
    assert sorted(effect_ids(path)) == ids(*range(count))
