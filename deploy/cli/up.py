"""`once up`: start the local stack, under a supervisor that outlives the command.

Commands and supervisor communicate by stack.json and signals only.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from deploy import PROJECT_ROOT
from deploy.cli.cluster import directory_option
from deploy.cli.output import answer, failing_on, json_option, note
from deploy.local import prerequisites
from deploy.local.kafka.cluster import brokers_of
from deploy.local.supervisor import state
from deploy.local.supervisor.topology import SERVICES
from shared.events.catalogue import REPLICATION_FACTOR
from shared.settings import SettingsError, partitions, replication_factor

_POLL_S = 0.1


@click.command()
@directory_option
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
@json_option()
def up(
    directory: Path,
    group: str,
    names: tuple[str, ...],
    brokers: int | None,
    monitoring: bool,
    secure: bool,
    timeout_s: float,
) -> None:
    """Start the local stack, and wait until all of it is ready.

    Brokers, Redis, the services and Prometheus run under a supervisor that outlives this command and starts again
    what ends.
    """
    with failing_on(state.SupervisorSilentError):
        current = state.running_or_starting(directory, timeout_s)
    if current is not None:
        if secure and current.tls is None:
            raise click.ClickException("already running, and not secure: stop it first with `once down`")
        note("already running")
        if not current.ready:
            former = current
            current = _wait_ready(directory, former.supervisor_pid, lambda: not state.is_alive(former), timeout_s)
    else:
        with failing_on(prerequisites.PrerequisiteError, SettingsError):
            prerequisites.require_java()
            prerequisites.require_redis()
            if monitoring:
                prerequisites.require_prometheus()
                prerequisites.require_redis_exporter()
            brokers = brokers or brokers_of(directory / "data" / "kafka") or REPLICATION_FACTOR
            replicas = replication_factor(brokers)
            count = partitions()
        if replicas == 1:
            note("one replica: if a broker's data is lost, its part of the ledger is lost")
        services = names or (SERVICES if group == "all" else ())
        arguments = ["--brokers", str(brokers), "--replication-factor", str(replicas)]
        arguments += ["--partitions", str(count), "--start-deadline", str(timeout_s + state.START_DEADLINE_S)]
        arguments += [argument for name in services for argument in ("--service", name)]
        arguments += ["--monitoring"] * monitoring + ["--secure"] * secure
        supervisor = _start_supervisor(directory, arguments)
        current = _wait_ready(directory, supervisor.pid, lambda: supervisor.poll() is not None, timeout_s)
    answer({"ready": current.ready, **msgspec.to_builtins(current)}, _endpoints(current))


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


def _wait_ready(
    directory: Path, supervisor_pid: int, has_ended: Callable[[], bool], timeout_s: float
) -> state.StackState:
    """Wait until a supervisor's stack is ready; print on stderr each component that has become so."""
    begun = time.monotonic()
    reported: set[str] = set()
    while True:
        ended = has_ended()
        current = state.read(directory)
        mine = current is not None and current.supervisor_pid == supervisor_pid
        if current is not None and mine:
            for component in current.components:
                if component.ready and component.name not in reported:
                    reported.add(component.name)
                    note(f"{component.name} ready after {time.monotonic() - begun:.1f} s")
            if current.ready:
                return current
            refused = [part.name for part in current.components if part.state == "failed"]
            if refused:
                raise click.ClickException(f"{refused[0]} refused its settings; see `once logs {refused[0]}`")
        if ended:
            said = (directory / "logs" / "supervisor.log").read_text(errors="replace").strip()
            raise click.ClickException(f"the stack could not be started:\n{said}")
        if time.monotonic() - begun > timeout_s:
            missing = [part.name for part in current.components if not part.ready] if current and mine else ["all"]
            raise click.ClickException(
                f"not ready after {timeout_s:g} s: {', '.join(missing)}. It keeps trying for a while;"
                " see `once status` and `once logs NAME`, or stop it with `once down`."
            )
        time.sleep(_POLL_S)


def _endpoints(current: state.StackState) -> str:
    secured = "" if current.tls is None else " (mutual TLS, access rules)"
    lines = [f"kafka      {current.bootstrap_servers}{secured}", f"redis      {current.redis_url}"]
    lines += [f"{part.name:<10} {part.endpoint}" for part in current.components if part.name in SERVICES]
    lines.append(f"key        {current.local_key_file}")
    if current.prometheus_url is not None:
        lines.append(f"prometheus {current.prometheus_url}")
    return "\n".join(lines)
