"""`make mutants`: break the checks of the reconciliation one by one; their tests in memory must notice.

Exit codes: 0 every mutant is found, 1 one survived, 2 a mutant or its test could not be run.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from tests.pipeline.mutants.campaign import Found, found, raise_if_failing
from tests.pipeline.mutants.mutant import Mutant
from tests.pipeline.mutants.running import NotRunError, one_session
from tests.pipeline.mutants.table import MUTANTS, chosen

SURVIVED, FAILED = 1, 2
WIDEST: Final = max(map(len, MUTANTS))


@click.command()
@click.option("--only", multiple=True, help="A mutant, or a check such as `legs`. May be repeated.")
@click.option("--list", "as_list", is_flag=True, help="Print the table, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(only: tuple[str, ...], *, as_list: bool, as_json: bool) -> None:
    """Break the code of the checks in one place at a time, and run their tests until one fails."""
    try:
        mutants = chosen(only)
    except KeyError as error:
        raise click.UsageError(f"no mutant and no check is named {error}; --list prints them") from error
    if as_list:
        click.echo(table(mutants))
        return
    begun = time.monotonic()
    done: list[Found] = []
    try:
        with one_session():
            raise_if_failing(one.found_by for one in mutants.values())
            for number, one in enumerate(found(mutants), start=1):
                done.append(one)
                click.echo(_line(one, number, len(mutants)), err=True)
            raise_if_failing(one.by for one in done if one.by and not mutants[one.mutant].expects(one.by))
    except NotRunError as error:
        click.echo(error, err=True)
        sys.exit(FAILED)
    _print(done, time.monotonic() - begun, as_json=as_json)
    sys.exit(FAILED if any(one.error for one in done) else SURVIVED if any(one.by is None for one in done) else 0)


def table(mutants: Mapping[str, Mutant]) -> str:
    """Return the table of docs/testing.md."""
    lines = ["| mutant | what it does | found by |", "| --- | --- | --- |"]
    lines += [f"| {name} | {one.what} | {_short(one.found_by)} |" for name, one in mutants.items()]
    return "\n".join(lines)


def _short(test: str) -> str:
    """Return a test's name without its file: that of the check."""
    return test.partition("::")[2].removeprefix("test_").replace("_", " ")


def _line(one: Found, number: int, count: int) -> str:
    text = one.error.splitlines()[0] if one.error else one.by or ""
    return f"{number:3}/{count} {_word(one):8} {one.seconds:5.1f} s  {one.mutant:{WIDEST}}  {text}"


def _word(one: Found) -> str:
    return "error" if one.error else "survived" if one.by is None else "found"


def _print(done: Sequence[Found], seconds: float, *, as_json: bool) -> None:
    counts = {word: sum(_word(one) == word for one in done) for word in ("found", "survived", "error")}
    if as_json:
        result = {**counts, "seconds": round(seconds), "mutants": done}
        click.echo(msgspec.json.encode(result))
        return
    for one in done:
        if not one.by or not MUTANTS[one.mutant].expects(one.by):
            click.echo(f"{one.mutant} {_word(one)}: {one.error or one.by or 'all tests of its check pass'}")
    text = ", ".join(f"{word} {count}" for word, count in counts.items())
    click.echo(f"{text}, of {len(done)} mutants ({counts['found'] / len(done):.0%}) in {seconds:.0f} s")


if __name__ == "__main__":
    main(prog_name="python -m tests.pipeline.mutants")
