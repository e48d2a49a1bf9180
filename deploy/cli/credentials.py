"""`once credentials`: a certificate authority, and a certificate for every principal and server."""

from pathlib import Path

import click

from deploy.cli.output import refusing
from deploy.security.certificates import CredentialsError, certificate_of, find_authority, hosts_of, open_authority
from deploy.security.principals import CLIENTS


def _server(text: str) -> tuple[str, list[str]]:
    name, _, hosts = text.partition("=")
    known_as = [host.strip() for host in hosts.split(",")]
    if name in CLIENTS or not all(host and host.isascii() for host in known_as):
        raise click.BadParameter(
            f"{text!r}: a server's name, and what its clients call it by in ASCII, NAME=HOST,...", param_hint="--server"
        )
    return name, known_as


_directory = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))


@click.group(cls=refusing(CredentialsError), epilog="Exit codes: 0 done, 2 wrong usage, 78 refused.")
def credentials() -> None:
    """Make and renew the certificates of a secure cluster.

    DIRECTORY gets authority.pem, which goes to everyone, and NAME.pem for each principal and server, a private key and
    its certificate, which goes to that one alone. authority.key.pem issues them: keep it elsewhere.
    """


@credentials.command()
@_directory
@click.option(
    "--server",
    "servers",
    multiple=True,
    type=_server,
    metavar="NAME=HOST,...",
    help="A server and what its clients call it by, as in broker-0=kafka-0,127.0.0.1; may be repeated.",
)
def make(directory: Path, servers: tuple[tuple[str, list[str]], ...]) -> None:
    """Make what is missing: the authority, each principal's identity and the servers'.

    What would expire within a month is renewed, servers that are there already as well.
    """
    authority = open_authority(directory)
    wanted: dict[str, list[str]] = {name: [] for name in CLIENTS} | dict(servers)
    for name in authority.names():
        if name not in wanted:
            wanted[name] = hosts_of(authority.identity_file(name))
    for name, known_as in wanted.items():
        if authority.ensure(name, known_as):
            _say(authority.identity_file(name))


@credentials.command()
@_directory
@click.argument("names", nargs=-1)
def renew(directory: Path, names: tuple[str, ...]) -> None:
    """Issue identities again, all or NAMES, with new keys.

    The authority stays. A service or broker uses its new identity once it is restarted; the others need no change.
    """
    authority = find_authority(directory)
    for name in names or authority.names():
        _say(authority.renew(name))


@credentials.command()
@_directory
@click.option("--drop-old", is_flag=True, help="Trust the newest alone: the last step.")
def authority(directory: Path, drop_old: bool) -> None:
    """Replace the authority: add one, `renew`, drop the old; restart all after each.

    The new one issues from then on, and both are trusted until the old one is dropped.
    """
    found = find_authority(directory)
    if drop_old:
        found.drop_authorities()
    else:
        found.add_authority()
    click.echo(f"{found.ca_file}")


def _say(path: Path) -> None:
    click.echo(f"{path} until {certificate_of(path).not_valid_after_utc:%Y-%m-%d}")
