"""`once`: every command under one name.

Invariant: a command's module is imported when it is asked for, so that `once status` does not wait for what it does
not use; errors that an operator can do something about are one line on stderr.
"""

import importlib
import logging
import sys
import tomllib
from typing import Final

import click

from deploy import PROJECT_ROOT
from shared.kafka.client.errors import (
    DeniedError,
    DrainTimeoutError,
    KafkaUnavailableError,
    TopicMismatchError,
)
from shared.settings import EXIT_CONFIG, SettingsError

COMMANDS: Final = (
    "up", "down", "status", "logs", "load", "verify", "repair", "reconcile", "breaks", "statement", "sql", "demo",
    "drill", "trace", "txn", "topics", "dead-letters", "effects", "endpoints", "subscriptions", "accounts", "clients",
    "keys", "fees", "rates", "credentials", "access", "docs",
)  # fmt: skip
"""In the order of `once --help`. Each is a module of deploy.cli with a command of the same name."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 # the same
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"deploy.cli.{name}"), name)
        return command


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # click's
    if asked and not context.resilient_parsing:
        project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]
        click.echo(f"once {project['version']}")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Exit codes:
  0   done; for a verdict: everything holds
  1   failed; for a verdict: something does not hold
  2   wrong usage
  3   there was nothing to show or to judge
  78  a setting, or this principal, was refused
""",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def once() -> None:
    """A payments ledger on Kafka that proves it processed every event exactly once.

    Results go to stdout, progress to stderr. Most commands take --json.
    """


def main() -> None:
    """The console script."""
    # The client logs every attempt that fails; what matters comes as an error
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        once(prog_name="once")
    except (SettingsError, DeniedError, KafkaUnavailableError, TopicMismatchError, DrainTimeoutError) as error:
        click.echo(f"once: {error}", err=True)
        sys.exit(EXIT_CONFIG if isinstance(error, SettingsError | DeniedError) else 1)
    except OSError as error:
        if error.errno is None:  # not of the operating system, but a timeout in this process: a defect
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        click.echo(f"once: {where}{error.strerror}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
