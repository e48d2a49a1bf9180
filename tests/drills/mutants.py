"""The runtime broken on purpose, on real brokers: the drill that is named for each mutant must find it.

    python -m tests.drills.mutants                     all of them
    python -m tests.drills.mutants --only no-member    one

A mutant is one of the simulator's. Every Python process of the drill runs broken, services included. A table goes to
stdout. Exit codes: 0 every mutant was found, 1 one was not, 2 wrong usage.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import click

from deploy.cli.output import answer, json_option, note, print_rows
from deploy.drills.drill import Verdict
from tests.harness import ROOT
from tests.simulation.mutants import MUTANTS

FOUND_BY: Final = {
    "offset-too-far": "B1",
    "wrong-group": "B1",
    "no-member": "B4",
    "read-uncommitted": "B11",
    "returned-epoch-ignored": "B1",
    "begun-before-restored": "B17",
    "no-dedup": "B16",
    "no-rewind": "B19",
    "no-rollback": "E6",
    "torn-left": "E12",
}
"""The drill that finds each mutant."""
_SITE: Final = Path(__file__).with_name("mutated")
_COLUMNS: Final = ("mutant", "what it does", "drill", "verdict", "because", "seconds")


class Found(NamedTuple):
    """What a drill said of a mutant.

    Attributes:
        is_found: whether the drill failed by what it saw; a drill that could not be run finds nothing.
    """

    mutant: str
    drill: str
    is_found: bool
    verdict: str
    reason: str
    seconds: float

    def row(self) -> dict[str, object]:
        """Return it as a row of the table."""
        cells = (self.mutant, MUTANTS[self.mutant].what, self.drill, self.verdict, self.reason, self.seconds)
        return dict(zip(_COLUMNS, cells, strict=True))


def hunt(mutant: str, drill: str) -> Found:
    """Run a drill with the runtime broken."""
    begun_s = time.monotonic()
    places = [str(_SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "ONCE_TEST_MUTANT": mutant}
    done = subprocess.run(
        [sys.executable, "-m", "deploy.cli.main", "drill", "run", drill, "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = round(time.monotonic() - begun_s, 1)
    if not done.stdout:
        return Found(mutant, drill, is_found=False, verdict="error", reason=done.stderr[-500:], seconds=seconds)
    [result] = json.loads(done.stdout)["results"]
    found = result["verdict"] in {Verdict.NOT_AS_EXPECTED, Verdict.FAILED}
    return Found(mutant, drill, found, result["verdict"], result["reason"][:200], seconds)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(list(FOUND_BY)), help="One mutant.")
@click.option("--drill", help="Run this drill instead of the one that is named.")
@json_option()
def main(only: str | None, drill: str | None) -> None:
    """Hunt the mutants."""
    results = []
    for mutant, named in FOUND_BY.items():
        if only in {None, mutant}:
            results.append(hunt(mutant, drill or named))
            note(f"mutants: {' '.join(map(str, results[-1].row().values()))}")
    rows = [one.row() for one in results]
    answer({"mutants": rows}, lambda: print_rows(rows, _COLUMNS, width_chars=200))
    sys.exit(0 if all(one.is_found for one in results) else 1)


if __name__ == "__main__":
    main()
