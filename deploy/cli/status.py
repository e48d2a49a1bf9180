"""`once status`: the local stack's components."""

import sys
import time
from pathlib import Path

import click
import msgspec

from deploy.cli.cluster import directory_option
from deploy.cli.output import answer, console, json_option, note, table
from deploy.local.supervisor import state

_COLUMNS = ("component", "state", "pid", "restarts", "uptime", "endpoint")


@click.command()
@directory_option
@json_option()
def status(directory: Path) -> None:
    """Show what runs. Exits 0 only if every component is ready."""
    current = state.running(directory)
    found = {"running": False}
    if current is not None:
        found = {"running": True, "ready": current.ready, **msgspec.to_builtins(current)}
    answer(found, lambda: _show(current))
    if current is None or not current.ready:
        sys.exit(1)


def _show(current: state.StackState | None) -> None:
    if current is None:
        note("nothing is running")
        return
    rows = map(_cells, current.components)
    console().print(table(_COLUMNS, rows, right=("pid", "restarts", "uptime"), fold=("endpoint",)))
    click.echo(f"the gateway's client local has its key in {current.local_key_file}")
    if current.tls is not None:
        click.echo(f"kafka is secure: mutual TLS and access rules; the operator is {current.tls.identity_file}")


def _cells(part: state.ComponentState) -> tuple[str, ...]:
    uptime = "-" if part.pid is None or part.started_at_s is None else _duration(time.time() - part.started_at_s)
    exit_code = "" if part.last_exit_code is None or part.ready else f" (exit {part.last_exit_code})"
    pid = "-" if part.pid is None else str(part.pid)
    return part.name, part.state + exit_code, pid, str(part.restarts), uptime, part.endpoint


def _duration(seconds: float) -> str:
    """Seconds in short: 42s, 5m10s, 3h02m."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
