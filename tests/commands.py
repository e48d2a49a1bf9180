"""Operators' commands, run in this process: a process of their own takes a second to import what they need."""

from click.testing import CliRunner, Result

from deploy.cli import main


def once(*words: object) -> Result:
    """Run `once` with these words; a failure that `main` would explain is the result's exception."""
    return CliRunner().invoke(main.once, [str(word) for word in words])
