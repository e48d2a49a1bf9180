"""Child processes that cannot outlive the process that started them: brokers, Redis and services alike.

Invariant: a child is killed by the kernel when its parent dies, however the parent dies (PR_SET_PDEATHSIG, Linux). It
runs in a session of its own, so that Ctrl-C in a terminal reaches the parent only.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# The kernel sends the death signal when the *thread* that forked ends, not the process. One thread that lives as
# long as this process forks them all, so that callers may use short-lived threads.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def die_with(parent_pid: int) -> None:
    """Let the kernel kill this process, a child of `parent_pid`, when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent died before prctl: no signal will come
        os._exit(1)


class ProcessNotRunningError(RuntimeError):
    """The operation needs a running process, and there is none."""


class ProcessDeadlineError(RuntimeError):
    """A process did not end before its deadline."""


def state_of(pid: int) -> str:
    """Return the state of a process, such as T for one that SIGSTOP has stopped; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _stopped(pid: int) -> bool:
    """Whether each thread of a process is stopped or has ended; see proc(5)."""
    states = []
    for stat in Path(f"/proc/{pid}").glob("task/*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"T", "Z", "X"}


class ManagedProcess:
    """One child process that can be started again after it has ended.

    Args:
        env: variables to set on top of this process's own environment, which is handed on unread.
        log_path: the file that stdout and stderr are appended to; its directory is made. At a start it is put aside
            as `.log.1` when it has grown beyond LOG_BYTES_MAX.
        cwd: the working directory of the child; this process's own when None.
    """

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.log_path = log_path
        self.cwd = cwd
        self.started_s = 0.0  # time.monotonic() of the last start
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the running child, or None."""
        return self._popen.pid if self._popen is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the child runs. A paused child runs."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit code of the last run (negative: the signal that ended it); None while it runs or before it did."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> int:
        """Start the child and return its pid. Does nothing when it runs already."""
        if self._popen is not None and self.running:
            return self._popen.pid
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self._popen = _SPAWNER.submit(self._spawn).result()
        self.started_s = time.monotonic()
        return self._popen.pid

    def terminate(self, deadline_s: float = 10.0) -> int | None:
        """Ask the child to end and wait, or kill it after `deadline_s` seconds; None when it was never started."""
        if self._popen is None:
            return None
        self.request_stop()
        return self.wait_or_kill(deadline_s)

    def wait_or_kill(self, deadline_s: float) -> int | None:
        """Wait for the child to end, or kill it after `deadline_s` seconds; None when it was never started."""
        if self._popen is None:
            return None
        try:
            return self._popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._popen.returncode

    def request_stop(self) -> None:
        """Send SIGTERM and do not wait. A paused child is resumed, else it would never see it."""
        if self._popen is not None and self.running:
            self._popen.send_signal(signal.SIGTERM)
            self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the child and to what it forked, and reap it. Does nothing when it has ended."""
        popen = self._popen
        if popen is None or popen.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended, and another thread reaped it, just now
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()

    def pause(self) -> None:
        """Stop it by SIGSTOP, and wait until it has stopped; ProcessNotRunningError when it does not run."""
        pid = self._pid_running()
        os.killpg(pid, signal.SIGSTOP)
        # Its threads on other cores go on for a moment after the signal was sent
        while self.running and not _stopped(pid):
            time.sleep(0.001)

    def resume(self) -> None:
        """Send SIGCONT; ProcessNotRunningError when it does not run."""
        os.killpg(self._pid_running(), signal.SIGCONT)

    def wait(self, deadline_s: float) -> int:
        """Wait until the child has ended by itself, and return its exit code.

        Raises:
            ProcessNotRunningError: it was never started.
            ProcessDeadlineError: it still runs after `deadline_s` seconds.
        """
        if self._popen is None:
            raise ProcessNotRunningError(f"{self.name} was never started")
        try:
            return self._popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise ProcessDeadlineError(f"{self.name} still runs after {deadline_s} s") from None

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log file; empty when there is none."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _pid_running(self) -> int:
        if self._popen is None or not self.running:
            raise ProcessNotRunningError(f"{self.name} does not run")
        return self._popen.pid

    def _spawn(self) -> "subprocess.Popen[bytes]":
        parent_pid = os.getpid()
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self.argv,
                env={**os.environ, **self.env},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent_pid),  # noqa: PLW1509 - it makes one system call and takes no lock
            )


class Signalled:
    """A component made of one process, to which it passes signals on."""

    process: ManagedProcess

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()
