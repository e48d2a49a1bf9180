"""Fork services from a process that has imported them: an import takes longer than most tests need the service.

There is one such forker for each service, started when a test first needs it. What it forks has a pid, session,
environment and log of its own, as `python -m services.<name>` would.
"""

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

from deploy.local.process import ManagedProcess, die_with

_START_S: Final = 60.0
_MESSAGE_BYTES_MAX: Final = 1 << 17
_directory: Path | None = None
_forkers: dict[str, ManagedProcess] = {}


@contextmanager
def preforking(directory: Path) -> Iterator[None]:
    """Let PreforkedProcess fork; without it, the process is started in the ordinary way.

    Args:
        directory: for sockets and logs; its path is to be short.
    """
    global _directory  # noqa: PLW0603 # a process has one set of forkers
    _directory = directory
    try:
        yield
    finally:
        _directory = None
        for forker in _forkers.values():
            forker.kill()
        _forkers.clear()


class PreforkedProcess(ManagedProcess):
    """A service, forked where that is possible: not with a library that must be loaded before all others."""

    @property
    def _forked(self) -> bool:
        return _directory is not None and "LD_PRELOAD" not in self.env

    def start(self) -> int:
        """Start the service, and its forker if it is the first."""
        if self._forked:
            _start_forker(self.argv[2])
        return super().start()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        if not self._forked:
            return super()._spawn()
        _, flag, module, *arguments = self.argv
        assert flag == "-m", self.argv
        connection = _connect(module)
        request = {
            "arguments": arguments,
            "environment": {**os.environ, **self.env},
            "directory": str(self.cwd or Path.cwd()),
            "log": str(self.log_path),
        }
        connection.send(json.dumps(request).encode())
        return cast("subprocess.Popen[bytes]", _Forked(connection))


class _Forked:
    """The part of subprocess.Popen that ManagedProcess uses.

    Args:
        connection: to the forker, which sends the pid at once and the exit code when the process has ended.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.pid = int(connection.recv(_MESSAGE_BYTES_MAX))
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._forker = connection.detach()
        weakref.finalize(self, os.close, self._forker)  # not before: several threads may wait for the process

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if self.returncode is None and not select.select([self._forker], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("", timeout or 0)
        with self._lock:
            if self.returncode is None:
                # An end of the forker would kill the process as well
                self.returncode = int(os.read(self._forker, _MESSAGE_BYTES_MAX) or -signal.SIGKILL)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _start_forker(module: str) -> None:
    assert _directory is not None
    if module not in _forkers:
        argv = [sys.executable, "-m", __name__, module, str(_directory / f"{module}.socket")]
        _forkers[module] = ManagedProcess(module, argv, {}, _directory / f"{module}.log", cwd=Path.cwd())
    _forkers[module].start()


def _connect(module: str) -> socket.socket:
    """Connect to the forker of a module, which may still be importing it."""
    assert _directory is not None
    forker, deadline = _forkers[module], time.monotonic() + _START_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(_directory / f"{module}.socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            assert forker.running, f"the forker of {module} ended:\n{forker.log_tail()}"
            assert time.monotonic() < deadline, f"the forker of {module} does not listen:\n{forker.log_tail()}"
            time.sleep(0.02)
        else:
            return connection


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each request, and report how each child ends. Return in the children, with the request."""
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        readable: list[int] = select.select([listener.fileno(), *children], [], [])[0]
        for ready in readable:
            if ready == listener.fileno():
                connection, _ = listener.accept()
                request: dict[str, Any] = json.loads(connection.recv(_MESSAGE_BYTES_MAX))
                pid = os.fork()
                if pid == 0:
                    for inherited in (listener, connection, *(one for _, one in children.values())):
                        inherited.close()
                    return request
                connection.send(b"%d" % pid)
                children[os.pidfd_open(pid)] = pid, connection
            else:
                pid, connection = children.pop(ready)
                os.close(ready)
                exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):  # the test lost interest
                    connection.send(b"%d" % exit_code)
                connection.close()


def _become(request: dict[str, Any], forker_pid: int) -> None:
    """Do in a child what ManagedProcess does for a program that it starts."""
    os.setsid()
    die_with(forker_pid)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


def main() -> None:
    """Import a module, listen, and run it as `python -m` would in each child."""
    module, path = sys.argv[1:]
    entry = f"{module}.__main__"
    importlib.import_module(entry)
    del sys.modules[entry]  # it is to run once more
    forker_pid = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(path).unlink(missing_ok=True)  # of a forker that was killed
        listener.bind(path)
        listener.listen()
        request = _serve(listener)
    _become(request, forker_pid)
    sys.argv = [module, *request["arguments"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
