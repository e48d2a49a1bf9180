"""`once docs`: the generated tables of the documentation, written or checked."""

import sys
from pathlib import Path

import click

from deploy import PROJECT_ROOT
from deploy.documents import DOCUMENTS


def stale(root: Path) -> list[str]:
    """The generated files below `root` that are missing or differ from what the code says."""
    return [
        path for path, make in DOCUMENTS.items() if not (root / path).is_file() or (root / path).read_text() != make()
    ]


def write(root: Path) -> list[str]:
    """Bring the generated files below `root` up to date; returns those that were changed."""
    changed = stale(root)
    for path in changed:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(DOCUMENTS[path]())
    return changed


@click.command()
@click.option("--write/--check", "writing", required=True, help="Bring the files up to date, or only compare them.")
def docs(writing: bool) -> None:
    """Generate the tables of topics, metrics, settings, access rules and drills in docs/.

    Exit codes: 0 up to date, 1 stale (--check), 2 wrong usage.
    """
    found = write(PROJECT_ROOT) if writing else stale(PROJECT_ROOT)
    for path in found:
        click.echo(f"{path} {'written' if writing else 'is stale: run `once docs --write`'}")
    sys.exit(1 if found and not writing else 0)
