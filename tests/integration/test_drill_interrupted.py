"""SIGINT while a drill runs: faults are healed, and no process is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import ROOT, wait_until
from tests.tiers import full

pytestmark = pytest.mark.timeout(600)

COMPONENTS = 4  # three brokers and Redis


def _parent(pid: int) -> int | None:
    """Return a process's parent; None when it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(parent)


def descendants(pid: int) -> set[int]:
    """Return the processes that a process, or one of these, has started."""
    parents = {int(path.name): _parent(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


@contextmanager
def drilling(directory: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Run a drill with a fault, with its steps in a file."""
    log = directory / "steps.log"
    argv = [sys.executable, "-m", "deploy.cli.main", "drill", "run", "A2", "--keep", str(directory / "kept")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("step", [pytest.param("starting three brokers", marks=full), "fault: "])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, step: str) -> None:
    with drilling(tmp_path) as (process, log):
        wait_until(lambda: step in log.read_text() or process.poll() is not None, f"the step {step!r}", 400)
        if step == "fault: ":
            started = descendants(process.pid)
            assert len(started) >= COMPONENTS
        else:
            wait_until(lambda: bool(descendants(process.pid)), "a component", 60)
            started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
        assert "interrupted; nothing is left running" in log.read_text()
        assert {pid for pid in started if _parent(pid) is not None} == set()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == []
