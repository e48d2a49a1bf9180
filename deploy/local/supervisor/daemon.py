"""The daemon behind `once up`: a `Stack` whose state is written to DIR/stack.json, until SIGTERM.

Invariant: one runs for each directory. It ends with 0 after a stop, with 1 when the stack could not be started.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from deploy.local.ports import NoFreePortError
from deploy.local.prerequisites import PrerequisiteError
from deploy.local.supervisor import state
from deploy.local.supervisor.stack import START_ERRORS, Stack
from deploy.local.supervisor.topology import UnknownServiceError
from shared.settings import InstallationSettings

_LOCK_WAIT_S = 1.0  # a command holds the lock for a moment to see whether it is free


def describe(stack: Stack) -> state.StackState:
    """The stack's state, for the process that runs it to write."""
    tls = stack.access.tls
    return state.StackState(
        supervisor_pid=os.getpid(),
        supervisor_start_ticks=state.start_ticks(os.getpid()) or 0,
        complete=stack.complete,
        bootstrap_servers=stack.kafka.bootstrap_servers,
        redis_url=stack.redis.url,
        components=tuple(component.snapshot() for component in stack.components),
        tls=None if tls is None else state.TlsFiles(tls.ca_file, tls.identity_file),
        local_key_file=str(stack.client_files.local_key),
    )


def run(directory: Path, make: Callable[[Callable[[Stack], None]], Stack]) -> int:
    """Run the stack that `make` returns, given its `on_state`, and return the exit code."""
    with state.lock(directory, _LOCK_WAIT_S) as held:
        if not held:
            print("another supervisor runs in this directory, or its data is being deleted", file=sys.stderr)
            return 1
        try:
            return _serve(directory, make)
        finally:
            state.state_path(directory).unlink(missing_ok=True)


def _serve(directory: Path, make: Callable[[Callable[[Stack], None]], Stack]) -> int:
    def write(current: Stack) -> None:
        state.write(directory, describe(current))

    try:
        stack = make(write)
    except (NoFreePortError, PrerequisiteError, UnknownServiceError) as error:
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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="for data, logs and stack.json",
)
@click.option("--service", "services", multiple=True, help="a service to run; may be repeated")
@click.option("--monitoring", is_flag=True, help="run Prometheus and what it scrapes as well")
@click.option("--secure", is_flag=True, help="mutual TLS and access rules for Kafka and Redis")
@click.option("--brokers", type=int, default=3, help="how many")
@click.option("--partitions", type=int, default=InstallationSettings.partitions, help="of each topic")
@click.option(
    "--start-deadline", "start_deadline_s", type=float, default=state.START_DEADLINE_S, help="of brokers and Redis"
)
@click.option("--replication-factor", type=int, help="of the topics that are created")
def main(directory: Path, **options: Any) -> None:
    """Run the stack until SIGTERM or SIGINT."""
    sys.exit(run(directory, lambda on_state: Stack(directory, on_state=on_state, **options)))


if __name__ == "__main__":
    main(prog_name="python -m deploy.local.supervisor.daemon")
