"""`once up`, `down` and `load` where a stack starts or is not ready, and a pipe in place of a file."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy import PROJECT_ROOT
from deploy.cli import down, up
from deploy.local.ports import NoFreePortError
from deploy.local.process import ProcessDeadlineError
from deploy.local.supervisor import daemon, state
from deploy.local.supervisor.stack import Stack
from tests.commands import once


def state_of(pid: int, component_state: str) -> state.StackState:
    """A stack of one component, under a supervisor with this pid."""
    component = state.ComponentState("ingest", component_state, 1, 0, None, 1.0, "http://127.0.0.1:1")
    ticks = state.start_ticks(pid) or 0
    return state.StackState(pid, ticks, True, "127.0.0.1:2", "redis://127.0.0.1:3/0", (component,))


SUPERVISOR = """
import os, signal, sys, threading
from pathlib import Path
from deploy.local.supervisor import state
from tests.unit.test_local_commands import state_of
directory, after_s = Path(sys.argv[1]), float(sys.argv[2])
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
with state.lock(directory):
    print("locked", flush=True)
    if not ended.wait(after_s):
        state.write(directory, state_of(os.getpid(), "ready"))
    ended.wait(60)
    assert (directory / "data").exists(), "deleted under it"
"""
NEVER_S = 60.0


@contextmanager
def supervisor(directory: Path, after_s: float) -> Iterator["subprocess.Popen[str]"]:
    """A supervisor that starts: it holds the lock, and writes its first state some seconds later."""
    argv = [sys.executable, "-c", SUPERVISOR, str(directory), str(after_s)]
    with subprocess.Popen(argv, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a stack with data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_a_stack_that_starts_is_stopped_before_its_data_is_deleted(directory: Path) -> None:
    with supervisor(directory, after_s=0.5) as process:
        done = once("down", "--wipe", "--dir", directory)
        assert process.wait(10) == 0
    assert (done.exit_code, done.stderr) == (0, "stopping\nstopped\ndata deleted\n")
    assert not (directory / "data").exists()


def test_a_supervisor_without_a_state_is_named_and_nothing_is_deleted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(down, "_DEADLINE_S", 0.2)
    with supervisor(directory, NEVER_S):
        for command in (("down", "--wipe"), ("up", "--timeout", 0.2)):
            done = once(*command, "--dir", directory)
            assert done.exit_code == 1
            assert f"a process holds {directory}/supervisor.lock and has written no state" in done.stderr
    assert (directory / "data").exists()


def test_no_supervisor_can_start_while_the_data_is_deleted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = shutil.rmtree
    locked = []

    def look(path: Path) -> None:
        with state.lock(directory) as free:
            locked.append(not free)
        delete(path)

    monkeypatch.setattr(shutil, "rmtree", look)
    assert once("down", "--wipe", "--dir", directory).stderr == "nothing is running\ndata deleted\n"
    assert locked == [True]
    assert not (directory / "data").exists()


def test_a_directory_without_a_stack_is_left_as_it_is(tmp_path: Path) -> None:
    assert once("down", "--dir", tmp_path / "none").stderr == "nothing is running\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("component_state", "exit_code", "text"),
    [
        ("ready", 0, ""),
        ("starting", 1, "not ready after 0.3 s: ingest. It keeps trying for a while"),
        ("failed", 1, "ingest refused its settings; see `once logs ingest`"),
    ],
)
def test_a_stack_that_runs_is_waited_for(directory: Path, component_state: str, exit_code: int, text: str) -> None:
    state.write(directory, state_of(os.getpid(), component_state))
    done = once("up", "--timeout", 0.3, "--dir", directory)
    assert done.exit_code == exit_code
    assert done.stderr.startswith("already running\n")
    assert text in done.stderr


def test_a_stack_that_ends_meanwhile_is_reported(directory: Path) -> None:
    (directory / "logs" / "supervisor.log").write_text("no brokers")
    with subprocess.Popen(["sleep", "60"]) as other:
        state.write(directory, state_of(other.pid, "starting"))
        end = threading.Timer(0.5, other.kill)
        end.start()
        done = once("up", "--dir", directory)
    assert done.exit_code == 1
    assert "the stack could not be started:\nno brokers" in done.stderr


def test_a_supervisor_tries_for_longer_than_the_command_waits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def start(_directory: Path, arguments: list[str]) -> "subprocess.Popen[bytes]":
        given.extend(arguments)
        (directory / "logs" / "supervisor.log").touch()
        return subprocess.Popen(["true"])

    monkeypatch.setattr(up, "_start_supervisor", start)
    assert once("up", "--timeout", 300, "--dir", directory).exit_code == 1
    assert given[given.index("--start-deadline") + 1] == "390.0"


@pytest.mark.parametrize(
    "error",
    [
        NoFreePortError("no 9 free ports"),
        ProcessDeadlineError("format-0 still runs after 60 s"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_start_that_the_machine_refuses_is_one_line(
    directory: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_stack: Stack) -> None:
        raise error

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(Stack, "start", fail)
    assert daemon.run(directory, lambda on_state: Stack(directory, services=(), brokers=1, on_state=on_state)) == 1
    assert capsys.readouterr().err == f"{error}\n"


def test_a_pipe_is_no_file_to_load(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = once("load", pipe, "--bootstrap-servers", "127.0.0.1:1")
    assert done.exit_code == 2
    assert "is a pipe or a device, and is read more than once: give a file" in " ".join(done.stderr.split())
