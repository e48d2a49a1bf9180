"""`once`: every command under one name.

Invariant: a command's module is imported when it is asked for, so that `once status` does not wait for what it does
not use, and a container without Spark has every command that needs none; errors that an operator can do something about
are one line on stderr.
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


_OF_SPARK: Final = frozenset({"pyspark", "spark"})
"""Packages that the image of the services lacks."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 # the same
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        try:
            command: click.Command = getattr(importlib.import_module(f"deploy.cli.{name}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _OF_SPARK:
                raise
            return _without_spark(cmd_name)
        return command


def _without_spark(name: str) -> click.Command:
    """Return what takes a command's place where Spark is not installed."""

    where = f"with Compose, run `docker compose exec reconciliation once {name}`"

    def refuse() -> None:
        raise click.ClickException(f"{name} needs Spark, which is not installed here: {where}")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, anything, refuse, help=f"Not here, without Spark: {where}.")


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
