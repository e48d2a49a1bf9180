"""Credentials of the containers: makes what is missing, each holder's in a folder of its own.

Invariant: what exists is kept, so a second `docker compose up` changes nothing, except for certificates that would
expire within a month. All credentials are made from the authority's folder, which no other container mounts. A file is
whole or absent, and readable by its owner and the group of the readers only. No secret is printed, except for a new
client's key, once.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from deploy.clients.keyring import Keyring, KeyringError
from deploy.clients.local import ClientFiles, ensure_local
from deploy.local.supervisor.topology import SERVICES
from deploy.security import redis_users
from deploy.security.certificates import Authority, CredentialsError, open_authority
from deploy.security.files import kafka_uuid, replace, secret
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER, broker
from shared.events.catalogue import REPLICATION_FACTOR
from shared.http.keys import DEFAULT_SCOPES
from shared.kafka.admin.rules import RECONCILIATION
from shared.settings import EXIT_CONFIG

BROKERS: Final = tuple(broker(node_id) for node_id in range(REPLICATION_FACTOR))
GRAFANA: Final = "grafana"
CERTIFIED: Final = (*BROKERS, REDIS, *SERVICES, REDIS_EXPORTER, RECONCILIATION, OPERATOR)
"""Holders of a certificate."""
HOLDERS: Final = (*CERTIFIED, GRAFANA)
"""Holders of credentials; docker-compose.yml mounts a volume of its own for each."""
REDIS_URL: Final = f"rediss://{REDIS}:6379/0"
"""Address under which the exporter looks for its password."""

# Names of files in the holders' folders
CLUSTER_ID: Final = "cluster.id"
WEBHOOK_KEY: Final = "webhook.key"
WEBHOOK_PREVIOUS_KEY: Final = "webhook.previous.key"
"""The same key as long as none was replaced."""
API_KEYS: Final = "api-keys"
LOCAL_KEY: Final = "local.key"
"""The key of the gateway's client `local`, the operator's own."""
FORMER_KEY: Final = "gateway.key"
"""The operator's key in a deployment from before, whose client `operator` owns the accounts from then."""
USERS_FILE: Final = "users.acl"
OUTBOX_PASSWORD: Final = "redis.password"  # noqa: S105 # the name of a file
EXPORTER_PASSWORDS: Final = "redis-exporter.json"  # likewise
HEALTH_PASSWORD: Final = "operator.password"  # noqa: S105 # likewise
GRAFANA_PASSWORD: Final = "password"  # noqa: S105 # likewise

AUTHORITY: Final = Path("/var/lib/once/authority")
CREDENTIALS: Final = Path("/var/lib/once/credentials")

_MODE: Final = 0o440

Files = dict[str, dict[str, bytes]]
"""By holder and name."""


def hosts_of(holder: str) -> tuple[str, ...]:
    """Host names under which a holder serves; empty for a client."""
    return (holder,) if holder in {*BROKERS, REDIS} else ()


def make(authority: Authority) -> Files:
    """Make what is missing in the authority's folder; returns the files of each holder."""
    files: Files = {holder: {} for holder in HOLDERS}
    for holder in CERTIFIED:
        authority.ensure(holder, hosts_of(holder))
        for path in (authority.ca_file, authority.identity_file(holder)):
            files[holder][path.name] = path.read_bytes()
    own = authority.directory
    for name in BROKERS:
        files[name][CLUSTER_ID] = kept(own / CLUSTER_ID, kafka_uuid).encode()
    webhook_key = kept(own / WEBHOOK_KEY, secret)
    # Written in this order: the outbox never signs with a new key alone
    files["outbox"][WEBHOOK_PREVIOUS_KEY] = kept(own / WEBHOOK_PREVIOUS_KEY, lambda: webhook_key).encode()
    files["outbox"][WEBHOOK_KEY] = webhook_key.encode()
    files[GRAFANA][GRAFANA_PASSWORD] = kept(own / "grafana.password", secret).encode()
    passwords = {user.name: kept(own / f"redis-{user.name}.password", secret) for user in redis_users.USERS}
    files["outbox"][OUTBOX_PASSWORD] = passwords[redis_users.OUTBOX.name].encode()
    exporter = {REDIS_URL: passwords[redis_users.EXPORTER.name]}
    files[REDIS_EXPORTER][EXPORTER_PASSWORDS] = json.dumps(exporter).encode()
    files[REDIS][HEALTH_PASSWORD] = passwords[redis_users.OPERATOR.name].encode()
    digests = {name: [redis_users.digest(password)] for name, password in passwords.items()}
    files[REDIS][USERS_FILE] = redis_users.acl_file(digests).encode()
    clients = ClientFiles(own / API_KEYS, own / LOCAL_KEY)
    ensure_local(clients, _MODE)
    for name in ("gateway", "balances"):
        files[name][API_KEYS] = clients.keys.read_bytes()
    for name in (LOCAL_KEY, FORMER_KEY):
        if (own / name).exists():
            files[OPERATOR][name] = (own / name).read_bytes()
    return files


def distribute(files: Mapping[str, Mapping[str, bytes]], root: Path) -> list[Path]:
    """Write the files below `root` that are missing or differ; returns their paths."""
    wanted = {root / holder / name: data for holder, named in files.items() for name, data in named.items()}
    written = [path for path, data in wanted.items() if not path.exists() or path.read_bytes() != data]
    for path in written:
        write(path, wanted[path])
    return written


def add_client(authority: Authority, client: str) -> str:
    """Issue a key for a client of the gateway, another one if it has one; returns the key.

    Raises KeyringError: a client cannot be called so, or has too many keys.
    """
    make(authority)
    key, _ = _keyring(authority).issue(client, DEFAULT_SCOPES)
    return key


def remove_client(authority: Authority, client: str) -> None:
    """Revoke a client's oldest key.

    Raises KeyringError: it has none, or it is the last key of all.
    """
    make(authority)
    keyring = _keyring(authority)
    oldest = next((key.id for key in keyring.read() if key.client == client), None)
    keyring.revoke(client, oldest)


def _keyring(authority: Authority) -> Keyring:
    return Keyring(authority.directory / API_KEYS, _MODE)


def add_webhook_key(authority: Authority) -> None:
    """Sign webhooks with a new key as well; CredentialsError while an earlier one is still used with it."""
    make(authority)
    key, previous = (authority.directory / name for name in (WEBHOOK_KEY, WEBHOOK_PREVIOUS_KEY))
    if key.read_text() != previous.read_text():
        raise CredentialsError("webhooks have two keys: drop the earlier one first, with --webhook-key drop")
    write(key, secret().encode())


def drop_webhook_key(authority: Authority) -> None:
    """Sign webhooks with the newest key alone."""
    make(authority)
    write(authority.directory / WEBHOOK_PREVIOUS_KEY, (authority.directory / WEBHOOK_KEY).read_bytes())


def kept(path: Path, new: Callable[[], str]) -> str:
    """Return a file's content; a missing file is written with a new value first."""
    if not path.exists():
        write(path, new().encode())
    return path.read_text()


def write(path: Path, data: bytes) -> None:
    """Write a file in one step, in place of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, data, _MODE)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: 0 done, 2 wrong usage, {EXIT_CONFIG} refused.",
)
@click.option("--client", metavar="NAME", help="Issue a key for this client of the gateway; it may have two.")
@click.option("--drop-client", metavar="NAME", help="Remove this client's oldest key.")
@click.option("--renew", metavar="NAME...", help="Issue these certificates again, or all.")
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--authority", "step", type=click.Choice(["add", "drop"]), help="Add an authority, or trust the newest alone."
)
@click.option(
    "--webhook-key", type=click.Choice(["add", "drop"]), help="Add a key for webhooks, or sign with the newest alone."
)
def main(
    client: str | None,
    drop_client: str | None,
    renew: str | None,
    more: tuple[str, ...],
    step: str | None,
    webhook_key: str | None,
) -> None:
    """Make missing credentials, and print which files were written."""
    if more and renew is None:
        raise click.UsageError(f"unexpected arguments: {' '.join(more)}")
    try:
        authority = open_authority(AUTHORITY)
        if client:
            click.echo(f"key of {client}, shown this once: {add_client(authority, client)}")
        if drop_client:
            remove_client(authority, drop_client)
        if step == "add":
            authority.add_authority()
        elif step == "drop":
            authority.drop_authorities()
        if webhook_key == "add":
            add_webhook_key(authority)
        elif webhook_key == "drop":
            drop_webhook_key(authority)
        names = () if renew is None else (renew, *more)
        for name in authority.names() if names == ("all",) else names:
            authority.renew(name)
        written = distribute(make(authority), CREDENTIALS)
    except (CredentialsError, KeyringError) as error:
        click.echo(f"credentials: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    for path in written:
        click.echo(f"credentials: {path.relative_to(CREDENTIALS)} written")
    click.echo(f"credentials: {len(written)} written, the others are as they were")


if __name__ == "__main__":
    main(prog_name="credentials")
