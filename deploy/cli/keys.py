"""`once keys new`: a key for a client of the gateway."""

import click

from deploy.cli.cluster import client_name
from deploy.cli.output import answer, json_option
from deploy.security.files import client_key
from shared.http.keys import key_of


@click.group()
def keys() -> None:
    """Make keys for the gateway's clients."""


@keys.command(epilog="Exit codes: 0 done, 2 wrong usage.")
@click.argument("client", type=client_name)
@json_option()
def new(client: str) -> None:
    """Print a key for CLIENT and its line, for a file of keys that another program maintains.

    `once clients` maintains the file itself, and records its changes.
    """
    key = client_key()
    line = key_of(client, key).line
    answer({"client": client, "key": key, "line": line}, f"key   {key}\nline  {line}")
