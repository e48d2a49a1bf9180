"""State of the stack in stack.json: written by the supervisor, read by the commands.

Invariant: a reader sees a whole state; a supervisor counts as alive only when pid *and* start time agree, because pids
are used again. A supervisor holds the lock on supervisor.lock from before its first state until it ends.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

PROMETHEUS = "prometheus"
"""The name of that component."""
START_DEADLINE_S = 90.0
"""How long a supervisor waits for Redis, and then for the brokers, unless it is given longer."""
_POLL_S = 0.1


class SupervisorSilentError(RuntimeError):
    """A supervisor runs, and has not written a state in time."""


class ComponentState(msgspec.Struct, frozen=True):
    """One process of the stack.

    Attributes:
        name: as in `once logs NAME`.
        state: starting, ready, waiting (to be started again), failed (a refused setting: not started again), stopped.
        last_exit_code: of its last run that ended; negative for a signal.
        started_at_s: when it was last started, seconds since the epoch.
    """

    name: str
    state: str
    pid: int | None
    restarts: int
    last_exit_code: int | None
    started_at_s: float | None
    endpoint: str

    @property
    def ready(self) -> bool:
        return self.state == "ready"


class TlsFiles(msgspec.Struct, frozen=True):
    """The operator's way into a secure stack: PEM files, as for ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE."""

    ca_file: str
    identity_file: str


class StackState(msgspec.Struct, frozen=True):
    """The whole stack.

    Attributes:
        supervisor_start_ticks: the supervisor's start time, in clock ticks since the machine's start.
        complete: every component that was asked for has been started once.
        components: all processes, brokers first.
        tls: the operator's credentials; None where the stack is not secure.
        local_key_file: the key of the gateway's client `local`; empty in the state of a former version.
    """

    supervisor_pid: int
    supervisor_start_ticks: int
    complete: bool
    bootstrap_servers: str
    redis_url: str
    components: tuple[ComponentState, ...]
    tls: TlsFiles | None = None
    local_key_file: str = ""

    @property
    def prometheus_url(self) -> str | None:
        """Prometheus' address; None when it was left out."""
        return next((part.endpoint for part in self.components if part.name == PROMETHEUS), None)

    @property
    def ready(self) -> bool:
        """Whether all that was asked for runs and can do its work."""
        return self.complete and all(component.ready for component in self.components)


def state_path(directory: Path) -> Path:
    return directory / "stack.json"


def write(directory: Path, state: StackState) -> None:
    """Replace the state file in one step."""
    path = state_path(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".json.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    new.replace(path)


def read(directory: Path) -> StackState | None:
    """The last state written, whether its supervisor lives or not; None when there is none or it is not readable."""
    try:
        return msgspec.json.decode(state_path(directory).read_bytes(), type=StackState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def running(directory: Path) -> StackState | None:
    """The state of the stack that runs in this directory, or None. The file of a dead supervisor is removed."""
    state = read(directory)
    if state is not None and is_alive(state):
        return state
    if state is not None:
        state_path(directory).unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def lock(directory: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold the supervisor's lock; yields False if another process still holds it after `wait_s` seconds.

    The kernel frees it, however the holder ends.
    """
    directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with _lock_path(directory).open("w") as file:
        while not (held := _take(file.fileno())) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield held


def running_or_starting(directory: Path, deadline_s: float) -> StackState | None:
    """As `running`, but wait for the first state of a supervisor that has just begun.

    Raises:
        SupervisorSilentError: it writes none for `deadline_s` seconds.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        state = running(directory)
        if state is not None or not _lock_path(directory).exists():
            return state
        with lock(directory) as free:
            if free:
                return None
        if time.monotonic() > deadline:
            raise SupervisorSilentError(
                f"a process holds {_lock_path(directory)} and has written no state for {deadline_s:g} s:"
                " see logs/supervisor.log, or end that process"
            )
        time.sleep(_POLL_S)


def _lock_path(directory: Path) -> Path:
    return directory / "supervisor.lock"


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(state: StackState) -> bool:
    """Whether the supervisor that wrote this state still runs."""
    return start_ticks(state.supervisor_pid) == state.supervisor_start_ticks


def start_ticks(pid: int) -> int | None:
    """The start time of a process, in clock ticks since the machine's start; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse_start_ticks(stat)


def parse_start_ticks(stat: str) -> int | None:
    """Field 22 of a /proc/PID/stat line; None for a zombie, which has ended. See proc(5).

    The second field, the command's name, may hold spaces and brackets: the fields are counted from the last bracket.
    """
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
