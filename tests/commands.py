"""Operators' commands, run in this process: a process of their own takes a second to import what they need."""

from concurrent.futures import ThreadPoolExecutor

from click.testing import CliRunner, Result

from deploy.cli import main


def once(*words: object) -> Result:
    """Run `once` with these words; a failure that `main` would explain is the result's exception.

    A command has an event loop of its own, so it runs in a thread: the caller's may have one as well.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(CliRunner().invoke, main.once, [str(word) for word in words]).result()
