"""`make simulate`: histories of the services on a simulated cluster, from their seeds.

Exit codes: 0 every history passes, 1 one does not, 2 wrong usage.
"""

import os
import sys
from collections.abc import Sequence

import click
import msgspec

from shared.events.partitions import PARTITIONS_MAX
from tests.simulation.campaign import Found, Outcome, all_found, outcome, outcomes
from tests.simulation.histories import FAIL, PASS, UNKNOWN
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import PARTITIONS


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="How many histories.")
@click.option("--first", type=click.IntRange(min=0), default=1, show_default=True, help="The first seed.")
@click.option("--faults", help="Numbers of the faults to keep, comma separated; empty for none. With one seed.")
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    default=PARTITIONS,
    show_default=True,
    help="Of each topic; another number gives other histories.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True, help="Processes.")
@click.option("--shrink/--no-shrink", default=True, help="Look for the fewest faults by which a history fails.")
@click.option("--mutants", is_flag=True, help="Print which history finds each way to break the runtime.")
@click.option("--mutant", type=click.Choice(list(MUTANTS)), help="Break the runtime in this way.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(
    seeds: int,
    first: int,
    faults: str | None,
    partitions: int,
    jobs: int,
    mutant: str | None,
    *,
    shrink: bool,
    mutants: bool,
    as_json: bool,
) -> None:
    """Run histories of ingest, transform and ledger on a simulated cluster, each from its seed."""
    if mutants:
        sys.exit(_find_mutants(jobs))
    if faults is not None:
        kept = [int(number) for number in faults.split(",") if number]
        done = [outcome(first, kept, mutant, partitions, shrink=shrink)]
    else:
        done = []
        for one in outcomes(range(first, first + seeds), jobs, mutant, partitions, shrink=shrink):
            done.append(one)
            _tell(one, partitions)
            click.echo(f"\rhistories: {len(done)} of {seeds}", nl=False, err=True)
        click.echo(err=True)
    if faults is not None or seeds == 1:
        click.echo(done[0].history, err=True)
    figures = {verdict: sum(one.verdict == verdict for one in done) for verdict in (PASS, FAIL, UNKNOWN)}
    figures |= {"cpu_s": round(sum(one.cpu_s for one in done), 1)}  # type: ignore[dict-item]
    if as_json:
        click.echo(msgspec.json.encode({**figures, "histories": done}).decode())
    else:
        click.echo(", ".join(f"{name} {figure}" for name, figure in figures.items()))
    sys.exit(0 if figures[PASS] == len(done) else 1)


def _find_mutants(jobs: int) -> int:
    """Print which history finds each mutant; returns the exit code, 1 when one is not found."""
    found = []
    for one in all_found(jobs):
        found.append(one)
        click.echo(f"{one.mutant}: seed {one.seed}", err=True)
    click.echo(mutants_table(found))
    return 0 if all(one.seed is not None for one in found) else 1


def mutants_table(found: Sequence[Found]) -> str:
    """A table for people, in Markdown."""
    lines = ["| mutant | what it does | found by seed | which breaks |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.mutant} | {MUTANTS[one.mutant].what} | {one.seed} | {', '.join(one.breaks)} |" for one in found]
    return "\n".join(lines)


def _tell(one: Outcome, partitions: int) -> None:
    if one.verdict == PASS:
        return
    click.echo(f"\nseed {one.seed}: {one.verdict}", err=True)
    for finding in one.findings:
        click.echo(f"  {finding}", err=True)
    kept = ",".join(map(str, one.faults))
    command = f"make simulate SEEDS=1 FIRST={one.seed} FAULTS={kept}"
    if partitions != PARTITIONS:
        words = f"--partitions {partitions} --seeds 1 --first {one.seed} --faults '{kept}'"
        command = f"python -m tests.simulation {words}"
    click.echo(f"  again, with its history: {command}", err=True)
