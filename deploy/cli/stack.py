"""`once up`, `once down`, `once status` and `once logs`: the local stack from the command line.

They talk to the supervisor through stack.json and signals only. Results go to stdout, progress to stderr.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from deploy.local.kafka.cluster import brokers_of
from deploy.local.prerequisites import (
    PrerequisiteError,
    require_java,
    require_prometheus,
    require_redis,
    require_redis_exporter,
)
from deploy.local.supervisor import state
from deploy.local.supervisor.stack import PROJECT_ROOT
from deploy.local.supervisor.topology import SERVICES
from shared.events.catalogue import REPLICATION_FACTOR
from shared.settings import SettingsError, once_directory, replication_factor

_POLL_S = 0.1
_DOWN_DEADLINE_S = 60.0
_LOG_LINES = 50


def default_directory() -> Path:
    """The stack's directory: ONCE_DIR if set, else `.once` in the project's root."""
    chosen = once_directory()
    return Path(chosen).resolve() if chosen else PROJECT_ROOT / ".once"


def _as_path(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    return default_directory() if value is None else value.resolve()


_directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_as_path,
    help="Directory for data, logs and state.  [default: $ONCE_DIR or .once in the project's root]",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@_directory_option
@click.option(
    "--services",
    "group",
    type=click.Choice(["all", "none"]),
    default="all",
    help="All services, or brokers and Redis only.",
)
@click.option("--service", "names", multiple=True, type=click.Choice(SERVICES), help="Only this one; may be repeated.")
@click.option(
    "--brokers",
    type=click.IntRange(1, 9),
    help="How many Kafka brokers. With 1 nothing is replicated.  [default: as many as before, or 3]",
)
@click.option(
    "--monitoring/--no-monitoring",
    default=True,
    show_default=True,
    help="Prometheus, scraping brokers, Redis and services; without it, 0.2 GB less memory.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Mutual TLS for brokers, Redis and services; each may do only what docs/access.md and docs/redis-access.md "
    "allow.",
)
@click.option(
    "--timeout", "timeout_s", type=float, default=90.0, show_default=True, help="Seconds to wait until ready."
)
@_json_option
def up(
    directory: Path,
    group: str,
    names: tuple[str, ...],
    brokers: int | None,
    monitoring: bool,
    secure: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start the local stack, and wait until all of it is ready.

    Brokers, Redis, the services and Prometheus run under a supervisor that outlives this command and starts again
    what ends.
    """
    current = state.running(directory)
    if current is not None:
        if secure and current.tls is None:
            raise click.ClickException("already running, and not secure: stop it first with `once down`")
        click.echo("already running", err=True)
        _print_endpoints(current, as_json)
        return
    try:
        require_java()
        require_redis()
        if monitoring:
            require_prometheus()
            require_redis_exporter()
        brokers = brokers or brokers_of(directory / "data" / "kafka") or REPLICATION_FACTOR
        replicas = replication_factor(brokers)
    except (PrerequisiteError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    if replicas == 1:
        click.echo("one replica: if a broker's data is lost, its part of the ledger is lost", err=True)
    services = names or (SERVICES if group == "all" else ())
    arguments = ["--brokers", str(brokers), "--replication-factor", str(replicas)]
    arguments += [argument for name in services for argument in ("--service", name)]
    arguments += ["--monitoring"] * monitoring + ["--secure"] * secure
    current = _wait_ready(directory, _start_supervisor(directory, arguments), timeout_s)
    _print_endpoints(current, as_json)


@click.command()
@_directory_option
@click.option("--wipe", is_flag=True, help="Delete the data afterwards: topics, offsets and Redis.")
def down(directory: Path, wipe: bool) -> None:
    """Stop the local stack: services first, then Redis and the brokers."""
    current = state.running(directory)
    if current is None:
        click.echo("nothing is running", err=True)
    else:
        click.echo("stopping", err=True)
        os.kill(current.supervisor_pid, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_DEADLINE_S
        while state.is_alive(current):
            if time.monotonic() > deadline:
                click.echo(f"not stopped after {_DOWN_DEADLINE_S:.0f} s: killing it", err=True)
                os.kill(current.supervisor_pid, signal.SIGKILL)  # its children die with it
                deadline += _DOWN_DEADLINE_S
            time.sleep(_POLL_S)
        state.running(directory)  # removes the file of a killed supervisor
        click.echo("stopped", err=True)
    if wipe and (directory / "data").exists():
        shutil.rmtree(directory / "data")
        click.echo("data deleted", err=True)


@click.command()
@_directory_option
@_json_option
def status(directory: Path, as_json: bool) -> None:
    """Show what runs. Exits 0 only if every component is ready."""
    current = state.running(directory)
    if as_json:
        found = {"running": False} if current is None else {"running": True, "ready": current.ready, **_plain(current)}
        click.echo(msgspec.json.encode(found))
    elif current is None:
        click.echo("nothing is running", err=True)
    else:
        Console().print(_table(current))
        if current.tls is not None:
            click.echo(f"kafka is secure: mutual TLS and access rules; the operator is {current.tls.identity_file}")
    if current is None or not current.ready:
        sys.exit(1)


@click.command()
@click.argument("service")
@_directory_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=_LOG_LINES, show_default=True, help="Last lines.")
def logs(service: str, directory: Path, follow: bool, lines: int) -> None:
    """Print the log of a SERVICE, of broker-0 and so on, redis, prometheus or the supervisor."""
    path = directory / "logs" / f"{service}.log"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (directory / "logs").glob("*.log"))) or "none yet"
        raise click.ClickException(f"no log of {service!r}; there are: {known}")
    with path.open(errors="replace") as log:
        for line in deque(log, maxlen=lines):
            click.echo(line, nl=False)
        while follow:
            line = log.readline()
            if line:
                click.echo(line, nl=False)
            else:
                time.sleep(_POLL_S)


def _start_supervisor(directory: Path, arguments: list[str]) -> "subprocess.Popen[bytes]":
    """Start the daemon in a session of its own, so that it survives this command and its terminal."""
    argv = [sys.executable, "-m", "deploy.local.supervisor.daemon", "--dir", str(directory), *arguments]
    log_path = directory / "logs" / "supervisor.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        return subprocess.Popen(
            argv,
            cwd=PROJECT_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_ready(directory: Path, supervisor: "subprocess.Popen[bytes]", timeout_s: float) -> state.StackState:
    """Wait until the new stack is ready, saying on stderr which component has become so."""
    begun = time.monotonic()
    reported: set[str] = set()
    while True:
        ended = supervisor.poll()
        current = state.read(directory)
        mine = current is not None and current.supervisor_pid == supervisor.pid
        if current is not None and mine:
            for component in current.components:
                if component.ready and component.name not in reported:
                    reported.add(component.name)
                    click.echo(f"{component.name} ready after {time.monotonic() - begun:.1f} s", err=True)
            if current.ready:
                return current
            refused = [part.name for part in current.components if part.state == "failed"]
            if refused:
                raise click.ClickException(f"{refused[0]} refused its settings; see `once logs {refused[0]}`")
        if ended is not None:
            said = (directory / "logs" / "supervisor.log").read_text(errors="replace").strip()
            raise click.ClickException(f"the stack could not be started:\n{said}")
        if time.monotonic() - begun > timeout_s:
            missing = [part.name for part in current.components if not part.ready] if current and mine else ["all"]
            raise click.ClickException(
                f"not ready after {timeout_s:g} s: {', '.join(missing)}. It keeps trying;"
                " see `once status` and `once logs NAME`, or stop it with `once down`."
            )
        time.sleep(_POLL_S)


def _print_endpoints(current: state.StackState, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"ready": current.ready, **_plain(current)}))
        return
    secured = "" if current.tls is None else " (mutual TLS, access rules)"
    click.echo(f"kafka      {current.bootstrap_servers}{secured}")
    click.echo(f"redis      {current.redis_url}")
    for component in current.components:
        if component.name in SERVICES:
            click.echo(f"{component.name:<10} {component.endpoint}")
    if current.prometheus_url is not None:
        click.echo(f"prometheus {current.prometheus_url}")


def _plain(current: state.StackState) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(current)
    return plain


def _table(current: state.StackState) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("component")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("restarts", justify="right")
    table.add_column("uptime", justify="right")
    table.add_column("endpoint", overflow="fold")
    for part in current.components:
        uptime = "-" if part.pid is None or part.started_at_s is None else _duration(time.time() - part.started_at_s)
        exit_code = "" if part.last_exit_code is None or part.ready else f" (exit {part.last_exit_code})"
        pid = "-" if part.pid is None else str(part.pid)
        table.add_row(part.name, part.state + exit_code, pid, str(part.restarts), uptime, part.endpoint)
    return table


def _duration(seconds: float) -> str:
    """Seconds as a reader wants them: 42s, 5m10s, 3h02m."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
