"""The daemon behind `once up`: a `Stack` whose state is written to DIR/stack.json, until SIGTERM.

What holds: one runs for each directory. It ends with 0 after a stop, with 1 when the stack could not be started, and
takes everything that it started with it.
"""

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from deploy.local import state
from deploy.local.prerequisites import PrerequisiteError
from deploy.local.supervisor import START_ERRORS, Stack
from deploy.local.topology import UnknownServiceError


def describe(stack: Stack) -> state.StackState:
    """The stack's state as it is written to stack.json by the process that runs it."""
    tls = stack.access.tls
    return state.StackState(
        supervisor_pid=os.getpid(),
        supervisor_start_ticks=state.start_ticks(os.getpid()) or 0,
        complete=stack.complete,
        bootstrap_servers=stack.kafka.bootstrap_servers,
        redis_url=stack.redis.url,
        components=tuple(component.snapshot() for component in stack.components),
        tls=None if tls is None else state.TlsFiles(tls.ca_file, tls.identity_file),
    )


def run(directory: Path, services: Sequence[str], *, monitoring: bool, secure: bool) -> int:
    """Run the daemon until SIGTERM or SIGINT; 0 after a stop, 1 when the stack could not be started.

    Only one runs per directory: it holds a lock on supervisor.lock, which the kernel frees however it ends.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "supervisor.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another supervisor runs in this directory", file=sys.stderr)
            return 1
        try:
            return _serve(directory, services, monitoring=monitoring, secure=secure)
        finally:
            state.state_path(directory).unlink(missing_ok=True)


def _serve(directory: Path, services: Sequence[str], *, monitoring: bool, secure: bool) -> int:
    def write(current: Stack) -> None:
        state.write(directory, describe(current))

    try:
        stack = Stack(directory, services=services, monitoring=monitoring, secure=secure, on_state=write)
    except (PrerequisiteError, UnknownServiceError) as error:
        print(error, file=sys.stderr)
        return 1

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        for handled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(handled, signal.SIG_IGN)
        raise SystemExit(0)

    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, on_signal)
    try:
        write(stack)
        stack.start()
        while True:
            signal.pause()
    except START_ERRORS as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        stack.stop()


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the daemon."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.daemon")
    parser.add_argument("--dir", type=Path, required=True, help="for data, logs and stack.json")
    parser.add_argument("--service", action="append", default=[], help="a service to run; may be repeated")
    parser.add_argument("--monitoring", action="store_true", help="run Prometheus and what it scrapes as well")
    parser.add_argument("--secure", action="store_true", help="mutual TLS and access rules for Kafka and Redis")
    options = parser.parse_args(arguments)
    return run(options.dir.resolve(), options.service, monitoring=options.monitoring, secure=options.secure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
