"""`once logs`: the log of one of the local stack's components."""

import sys
import time
from collections import deque
from pathlib import Path

import click

from deploy.cli.cluster import directory_option

_POLL_S = 0.1
_LINES = 50


@click.command()
@click.argument("service")
@directory_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Last lines.  [default: 50 on a terminal, else all]")
def logs(service: str, directory: Path, follow: bool, lines: int | None) -> None:
    """Print the log of a SERVICE, of broker-0 and so on, redis, prometheus or the supervisor."""
    path = directory / "logs" / f"{service}.log"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (directory / "logs").glob("*.log"))) or "none yet"
        raise click.ClickException(f"no log of {service!r}; there are: {known}")
    if lines is None and sys.stdout.isatty():
        lines = _LINES
    with path.open(errors="replace") as log:
        for line in deque(log, maxlen=lines):
            click.echo(line, nl=False)
        while follow:
            line = log.readline()
            if line:
                click.echo(line, nl=False)
            else:
                time.sleep(_POLL_S)
