"""`once keys new`: a key for a client of the gateway."""

import click
import msgspec

from deploy.security.generated import client_key
from services.gateway.access import is_client, line_of


def _client(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not is_client(value):
        raise click.BadParameter(
            "a client's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first two"
        )
    return value


@click.group()
def keys() -> None:
    """Make keys for the gateway's clients."""


@keys.command(epilog="Exit codes: 0 done, 2 wrong usage.")
@click.argument("client", callback=_client)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def new(client: str, *, as_json: bool) -> None:
    """Make a key for CLIENT.

    The key is shown this once and kept nowhere: give it to the client. The line goes into the file that
    ONCE_GATEWAY_API_KEYS_FILE names; the gateway takes it within seconds. To change a key, add the new line, wait
    until the client sends the new key, and take the old line out.
    """
    key = client_key()
    line = line_of(client, key)
    if as_json:
        click.echo(msgspec.json.encode({"client": client, "key": key, "line": line}))
    else:
        click.echo(f"key   {key}\nline  {line}")
