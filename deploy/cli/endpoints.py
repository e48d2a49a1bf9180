"""Where the commands find the cluster: an option, the environment, or the local stack that runs."""

import click

from deploy.cli.stack import default_directory
from deploy.local import state
from shared import settings


def find_bootstrap_servers() -> str | None:
    """The brokers that ONCE_BOOTSTRAP_SERVERS names, else those of the local stack; None when neither is there."""
    named = settings.bootstrap_servers()
    if named:
        return named
    stack = state.running(default_directory())
    return None if stack is None else stack.bootstrap_servers


def _or_found(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    found = value or find_bootstrap_servers()
    if found is None:
        raise click.ClickException(
            "no cluster: start the local stack with `once up`, or name one by --bootstrap-servers or "
            "ONCE_BOOTSTRAP_SERVERS"
        )
    return found


bootstrap_servers_option = click.option(
    "--bootstrap-servers",
    callback=_or_found,
    help="Kafka brokers.  [default: $ONCE_BOOTSTRAP_SERVERS or the local stack's]",
)
"""The option of every command that talks to the cluster; the command gets a `str`."""
