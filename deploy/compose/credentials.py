"""Makes what is missing of everyone's credentials, each holder's in a folder of its own: a container that works once.

What holds here: what exists is kept, so that a second `docker compose up` changes nothing, but for certificates that
would expire soon; what they are made of is in the authority's folder, which no other container sees; a file is there
wholly or not at all, readable by its owner and the group of the readers alone. Nothing secret is printed, but a new
client's key, once, to whom asks for it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.compose import places
from deploy.compose.pipeline import API_KEYS, ENDPOINTS
from deploy.security import redis_users
from deploy.security.certificates import Authority, CredentialsError, open_authority
from deploy.security.files import client_key, kafka_uuid, replace, secret
from services.gateway.access import KeysError, is_client, line_of, parse
from shared.settings import EXIT_CONFIG

CLUSTER_ID: Final = "cluster.id"
WEBHOOK_KEY: Final = ENDPOINTS.webhook_key_file.name
GRAFANA_PASSWORD: Final = "password"  # noqa: S105 # the name of a file
GATEWAY_KEY: Final = "gateway.key"
"""The operator's own key, as a client of the gateway."""
HEALTH_PASSWORD: Final = "operator.password"  # noqa: S105 # the name of a file

_MODE: Final = 0o440

Files = dict[str, dict[str, bytes]]
"""By holder and name."""


def hosts_of(holder: str) -> tuple[str, ...]:
    """What a server is called by its clients; nothing for a client."""
    return (holder,) if holder in {*places.BROKERS, places.REDIS} else ()


def make(authority: Authority) -> Files:
    """Make what is missing in the authority's folder; returns what each holder has to have of it."""
    files: Files = {holder: {} for holder in places.HOLDERS}
    for holder in places.CERTIFIED:
        authority.ensure(holder, hosts_of(holder))
        for path in (authority.ca_file, authority.identity_file(holder)):
            files[holder][path.name] = path.read_bytes()
    own = authority.directory
    for name in places.BROKERS:
        files[name][CLUSTER_ID] = kept(own / CLUSTER_ID, kafka_uuid).encode()
    files["outbox"][WEBHOOK_KEY] = kept(own / WEBHOOK_KEY, secret).encode()
    files[places.GRAFANA][GRAFANA_PASSWORD] = kept(own / "grafana.password", secret).encode()
    passwords = {user.name: kept(own / f"redis-{user.name}.password", secret) for user in redis_users.USERS}
    files["outbox"][places.REDIS_PASSWORD.name] = passwords[redis_users.OUTBOX.name].encode()
    exporter = {ENDPOINTS.redis_url: passwords[redis_users.EXPORTER.name]}
    files[places.REDIS_EXPORTER][places.EXPORTER_PASSWORDS.name] = json.dumps(exporter).encode()
    files[places.REDIS][HEALTH_PASSWORD] = passwords[redis_users.OPERATOR.name].encode()
    digests = {name: [redis_users.digest(password)] for name, password in passwords.items()}
    files[places.REDIS][places.USERS_FILE.name] = redis_users.acl_file(digests).encode()
    key = kept(own / GATEWAY_KEY, client_key)
    files[places.OPERATOR][GATEWAY_KEY] = key.encode()
    lines = kept(own / API_KEYS, lambda: line_of(places.OPERATOR, key) + "\n")
    files["gateway"][API_KEYS] = lines.encode()
    return files


def distribute(files: Mapping[str, Mapping[str, bytes]], root: Path) -> list[Path]:
    """Bring the holders' folders below `root` to what they have to be; returns the files written."""
    wanted = {root / holder / name: data for holder, named in files.items() for name, data in named.items()}
    written = [path for path, data in wanted.items() if not path.exists() or path.read_bytes() != data]
    for path in written:
        write(path, wanted[path])
    return written


def add_client(authority: Authority, client: str) -> str:
    """Give a client of the gateway a key, beside the one that it may have; returns the key.

    Raises:
        CredentialsError: a client cannot be called so, or has two keys.
    """
    if not is_client(client):
        raise CredentialsError(
            f"{client!r} cannot be a client's name: use 1 to 64 letters, digits, '.', '_' or '-', and no sign first"
        )
    make(authority)
    key = client_key()
    _change_keys(authority, lambda lines: [*lines, line_of(client, key)])
    return key


def drop_client(authority: Authority, client: str) -> None:
    """Take a client's oldest key away.

    Raises:
        CredentialsError: it has none, or it is the last key of all.
    """
    make(authority)

    def drop(lines: list[str]) -> list[str]:
        own = [line for line in lines if line.startswith(f"{client}:")]
        if not own:
            raise CredentialsError(f"{client!r} has no key")
        return [line for line in lines if line != own[0]]

    _change_keys(authority, drop)


def kept(path: Path, new: Callable[[], str]) -> str:
    """What a file holds; a new value, from now on, where there is none."""
    if not path.exists():
        write(path, new().encode())
    return path.read_text()


def write(path: Path, data: bytes) -> None:
    """Write a file in one step, in place of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, data, _MODE)


def main(words: Sequence[str], authority_directory: Path, root: Path) -> int:
    """Make what is missing and do what is asked for, saying on stdout which files were written."""
    options = _parser().parse_args(words)
    try:
        authority = open_authority(authority_directory)
        if options.client:
            print(f"key of {options.client}, shown this once: {add_client(authority, options.client)}")
        if options.drop_client:
            drop_client(authority, options.drop_client)
        if options.authority == "add":
            authority.add_authority()
        elif options.authority == "drop":
            authority.drop_authorities()
        for name in authority.names() if options.renew == ["all"] else options.renew:
            authority.renew(name)
        written = distribute(make(authority), root)
    except CredentialsError as error:
        print(f"credentials: {error}", file=sys.stderr)
        return EXIT_CONFIG
    for path in written:
        print(f"credentials: {path.relative_to(root)} written")
    print(f"credentials: {len(written)} written, the others are as they were", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="credentials", description=__doc__)
    parser.add_argument("--client", help="a key for this client of the gateway, beside the one that it may have")
    parser.add_argument("--drop-client", help="take this client's oldest key away")
    parser.add_argument("--renew", nargs="+", default=[], metavar="NAME", help="certificates to issue again, or all")
    parser.add_argument("--authority", choices=("add", "drop"), help="a new authority; or trust the newest alone")
    return parser


def _change_keys(authority: Authority, change: Callable[[list[str]], list[str]]) -> None:
    path = authority.directory / API_KEYS
    text = "\n".join(change(path.read_text().splitlines())) + "\n"
    try:
        parse(text.encode())
    except KeysError as error:
        raise CredentialsError(f"the gateway would refuse its keys: {error}") from error
    write(path, text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(places.AUTHORITY), Path(places.CREDENTIALS)))
