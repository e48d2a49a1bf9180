"""`once keys new`: a key for a client of the gateway."""

import click

from deploy.cli.output import answer, json_option
from deploy.security.files import client_key
from shared.events.clients import is_client
from shared.http.keys import key_of


def _client(value: str) -> str:
    if not is_client(value):
        raise click.BadParameter(
            "a client's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first two"
        )
    return value


@click.group()
def keys() -> None:
    """Make keys for the gateway's clients."""


@keys.command(epilog="Exit codes: 0 done, 2 wrong usage.")
@click.argument("client", type=_client)
@json_option()
def new(client: str) -> None:
    """Make a key for CLIENT.

    The key is shown this once and kept nowhere: give it to the client. The line goes into the file that
    ONCE_GATEWAY_API_KEYS_FILE names; the gateway takes it within seconds. To change a key, add the new line, wait
    until the client sends the new key, and take the old line out.
    """
    key = client_key()
    line = key_of(client, key).line
    answer({"client": client, "key": key, "line": line}, f"key   {key}\nline  {line}")
