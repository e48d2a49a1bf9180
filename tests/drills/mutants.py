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


class Hunter(NamedTuple):
    """The drill that finds a mutant.

    Attributes:
        says: a part of the reason that it then gives. A drill that fails for another reason has not found the mutant.
    """

    drill: str
    says: str


_VERDICT: Final = "verdict of `once verify`: fail, expected pass"
FOUND_BY: Final = {
    "offset-too-far": Hunter("B1", "records in the output"),
    "wrong-group": Hunter("B1", "records consumed"),
    "no-member": Hunter("B4", "answer to the zombie's offsets"),
    "read-uncommitted": Hunter("B11", "isolation levels in the runtime's fetches"),
    "returned-epoch-ignored": Hunter("B1", "records in the output"),
    "begun-before-restored": Hunter("B17", "records written by the replay"),
    "no-dedup": Hunter("B16", _VERDICT),
    "no-rewind": Hunter("B19", "the other payments accepted"),
    "no-rollback": Hunter("E6", _VERDICT),
    "torn-left": Hunter("E12", _VERDICT),
}
_SITE: Final = Path(__file__).with_name("mutated")
_COLUMNS: Final = ("mutant", "what it does", "drill", "verdict", "because", "seconds")


class Found(NamedTuple):
    """What a drill said of a mutant.

    Attributes:
        is_found: whether the drill failed by what it saw, for the reason that is named; a drill that could not be run
            finds nothing.
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


def hunt(mutant: str, drill: str, says: str) -> Found:
    """Run a drill with the runtime broken; `says` as in `Hunter`."""
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
    found = result["verdict"] in {Verdict.NOT_AS_EXPECTED, Verdict.FAILED} and says in result["reason"]
    return Found(mutant, drill, found, result["verdict"], result["reason"][:200], seconds)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(list(FOUND_BY)), help="One mutant.")
@click.option("--drill", help="Run this drill for every mutant; any of its failures then counts.")
@json_option()
def main(only: str | None, drill: str | None) -> None:
    """Hunt the mutants."""
    results = []
    for mutant, named in FOUND_BY.items():
        if only in {None, mutant}:
            results.append(hunt(mutant, drill, "") if drill else hunt(mutant, *named))
            note(f"mutants: {' '.join(map(str, results[-1].row().values()))}")
    rows = [one.row() for one in results]
    answer({"mutants": rows}, lambda: print_rows(rows, _COLUMNS, width_chars=200))
    sys.exit(0 if all(one.is_found for one in results) else 1)


if __name__ == "__main__":
    main()
