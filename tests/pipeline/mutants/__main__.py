"""`make mutants`: break the checks of the reconciliation one by one; their tests in memory must notice.

Exit codes: 0 at least 95 % of the mutants are found, 1 fewer, 2 a mutant or its test could not be run.
"""

import sys
import time
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from tests.pipeline.mutants.campaign import WORKERS, Found, exit_code, found
from tests.pipeline.mutants.mutant import Table
from tests.pipeline.mutants.table import MUTANTS, chosen

WIDEST: Final = max(map(len, MUTANTS))
_WORDS: Final = ("found", "survived", "error")


@click.command()
@click.option("--only", multiple=True, help="A mutant, or a check such as `legs`. May be repeated.")
@click.option("--list", "as_list", is_flag=True, help="Print all mutants, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--workers", type=click.IntRange(min=1), default=WORKERS, show_default=True, help="Processes at a time.")
def main(only: tuple[str, ...], workers: int, *, as_list: bool, as_json: bool) -> None:
    """Break the code of the checks in one place at a time, and run the test that must fail."""
    try:
        mutants = chosen(only)
    except KeyError as error:
        raise click.UsageError(f"no mutant and no check is named {error}; --list prints them") from error
    if as_list:
        click.echo(table(mutants))
        return
    begun = time.monotonic()
    done: dict[str, Found] = {}
    for one in found(mutants, workers):
        done[one.mutant] = one
        click.echo(_line(one, len(done), len(mutants)), err=True)
    results = [done[name] for name in mutants]
    seconds = round(time.monotonic() - begun)
    click.echo(_json(results, seconds) if as_json else summary(results, seconds))
    sys.exit(exit_code(results))


def table(mutants: Table) -> str:
    """Return the table of docs/mutants.md."""
    lines = ["| mutant | what it does | found by |", "| --- | --- | --- |"]
    lines += [f"| {name} | {one.what} | {_short(one.found_by)} |" for name, one in mutants.items()]
    return "\n".join(lines)


def _short(test: str) -> str:
    """Return a test's name without its file: that of the check."""
    return test.partition("::")[2].removeprefix("test_").replace("_", " ")


def _line(one: Found, number: int, count: int) -> str:
    text = one.error.splitlines()[0] if one.error else one.by or ""
    return f"{number:3}/{count} {one.word:8} {one.seconds:5.1f} s  {one.mutant:{WIDEST}}  {text}"


def summary(results: Sequence[Found], seconds: int) -> str:
    """Return a table by check, the mutants that were not found, and the sum."""
    by_check: dict[str, list[Found]] = {}
    for one in results:
        by_check.setdefault(one.mutant.partition("-")[0], []).append(one)
    lines = ["| check | mutants | found | survived | error | seconds |", "| --- | --: | --: | --: | --: | --: |"]
    for check, some in by_check.items():
        counts = " | ".join(str(count) for count in _counts(some).values())
        lines.append(f"| {check} | {len(some)} | {counts} | {sum(one.seconds for one in some):.0f} |")
    lines += [f"{one.mutant} {one.word}: {one.error or 'its test passes'}" for one in results if one.by is None]
    text = ", ".join(f"{word} {count}" for word, count in _counts(results).items())
    share = _counts(results)["found"] / len(results)
    return "\n".join([*lines, f"{text}, of {len(results)} mutants ({share:.1%}) in {seconds} s"])


def _counts(results: Sequence[Found]) -> dict[str, int]:
    return {word: sum(one.word == word for one in results) for word in _WORDS}


def _json(results: Sequence[Found], seconds: int) -> bytes:
    return msgspec.json.encode({**_counts(results), "seconds": seconds, "mutants": results})


if __name__ == "__main__":
    main(prog_name="python -m tests.pipeline.mutants")
