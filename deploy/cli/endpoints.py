"""Locate the cluster for the commands: an option, the environment, or the local stack that runs."""

import click

from deploy.cli.stack import default_directory
from deploy.local.supervisor import state
from shared import settings
from shared.kafka.client.access import Access, Tls, tls_of


def find_access() -> Access | None:
    """The brokers that ONCE_BOOTSTRAP_SERVERS names, else those of the local stack; None when neither is there.

    With them the files by which they let the operator in: ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE, else those of
    the local stack if its brokers are the ones that are named.

    Raises:
        SettingsError: one of the files is not set, or cannot be used.
    """
    return _access(settings.bootstrap_servers())


def _access(named: str | None) -> Access | None:
    stack = state.running(default_directory())
    brokers = named or (None if stack is None else stack.bootstrap_servers)
    if brokers is None:
        return None
    tls = tls_of(*settings.tls_files())
    if tls is None and stack is not None and stack.tls is not None and stack.bootstrap_servers == brokers:
        tls = Tls(stack.tls.ca_file, stack.tls.identity_file)
    if tls is not None:
        tls.context()
    return Access(brokers, tls)


def _or_found(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Access:
    found = _access(value) if value else find_access()
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
"""The option of every command that talks to the cluster; the command gets an `Access`."""
