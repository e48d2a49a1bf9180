"""`make drills`: every alert's fault on a monitored stack; each alert must fire, and be silent again.

Progress goes to stderr, a table to stdout. `python -m tests.drills RedisDown ServiceDown` runs those alone.
Exit codes: 0 all passed, 1 not, 2 wrong usage.
"""

import logging
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.drills.alerts.registry import DRILLS
from tests.drills.campaign import PASSED, Result, run
from tests.drills.monitored import monitored
from tests.drills.site import Site
from tests.drills.timeline import Watch

_NO_TERMINAL_WIDTH = 200


def say(line: str) -> None:
    """Print progress."""
    print(line, file=sys.stderr, flush=True)


def table(results: list[Result]) -> Table:
    """Format the results."""
    made = Table("alert", "fault", "firing after s", "resolved after s", "verdict", box=None, pad_edge=False)
    for result in results:
        made.add_row(result.alert, Text(result.does), _s(result.firing_s), _s(result.resolved_s), Text(result.verdict))
    return made


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("alert", nargs=-1)
def main(alert: tuple[str, ...]) -> None:
    """Run the drill of each ALERT, or all drills."""
    known = [drill.alert for drill in DRILLS]
    if unknown := sorted(set(alert) - set(known)):
        raise click.UsageError(f"no drill for {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [drill for drill in DRILLS if not alert or drill.alert in alert]
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # relevant failures are raised
    with tempfile.TemporaryDirectory(prefix="once-drills-") as directory:
        say("starting the monitored stack")
        with monitored(Path(directory)) as stack:
            site = Site(stack, Path(directory) / "site")
            site.warm_up()
            with Watch(site.prometheus) as watch:
                results = list(run(site, watch, chosen, say).values())
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH)
    console.print(table(results))
    sys.exit(0 if all(result.verdict == PASSED for result in results) else 1)


if __name__ == "__main__":
    main(prog_name="python -m tests.drills")
