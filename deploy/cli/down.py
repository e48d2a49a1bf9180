"""`once down`: stop the local stack."""

import os
import shutil
import signal
import time
from pathlib import Path

import click

from deploy.cli.cluster import directory_option
from deploy.cli.output import failing_on, note
from deploy.local.supervisor import state

_POLL_S = 0.1
_DEADLINE_S = 60.0


@click.command()
@directory_option
@click.option("--wipe", is_flag=True, help="Delete the data afterwards: topics, offsets and Redis.")
def down(directory: Path, wipe: bool) -> None:
    """Stop the local stack: services first, then Redis and the brokers."""
    with failing_on(state.SupervisorSilentError):
        current = state.running_or_starting(directory, _DEADLINE_S)
    if current is None:
        note("nothing is running")
    else:
        note("stopping")
        os.kill(current.supervisor_pid, signal.SIGTERM)
        deadline = time.monotonic() + _DEADLINE_S
        while state.is_alive(current):
            if time.monotonic() > deadline:
                note(f"not stopped after {_DEADLINE_S:.0f} s: killing it")
                os.kill(current.supervisor_pid, signal.SIGKILL)  # its children die with it
                deadline += _DEADLINE_S
            time.sleep(_POLL_S)
        state.running(directory)  # removes the file of a killed supervisor
        note("stopped")
    if wipe and (directory / "data").exists():
        _wipe(directory)


def _wipe(directory: Path) -> None:
    """Delete the data, while no supervisor can start."""
    with state.lock(directory, 1.0) as held:
        if not held:
            raise click.ClickException("the stack was started again meanwhile: nothing was deleted")
        shutil.rmtree(directory / "data")
    note("data deleted")
