"""`once clients`: the gateway's clients and their keys, and since when clients own accounts."""

import asyncio
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

import click
import msgspec

from deploy.cli.cluster import api_keys_option, brokers_option, optional_brokers_option
from deploy.cli.output import answer, failing_on, iso_ms, iso_time, json_option, note, operator, print_rows
from deploy.clients.audit import KeyName, last_uses, read_events, write_events
from deploy.clients.enforcement import enforce as enforce_ownership
from deploy.clients.keyring import Keyring, KeyringError
from shared.events.audit import AuditEvent, ClientAdded, KeyIssued, KeyRevoked
from shared.events.clients import Scope
from shared.http.keys import DEFAULT_SCOPES, Key, parse_scopes, parse_time, time_text
from shared.kafka.client.access import Access
from shared.kafka.client.errors import KafkaUnavailableError

_DAY_MS: Final = 86_400_000
_LAST_USE_DAYS: Final = 31
"""How far back a last use is looked for: the topic keeps all events."""
_EXIT_CODES: Final = "Exit codes: 0 done, 1 not, 2 wrong usage."
_WIDTH_CHARS: Final = 140


def _scopes(_context: click.Context, _parameter: click.Parameter, value: str | None) -> AbstractSet[Scope]:
    try:
        return DEFAULT_SCOPES if value is None else parse_scopes(value)
    except ValueError:
        raise click.BadParameter(f"choose some of {', '.join(Scope)}, separated by commas") from None


def _expires(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    try:
        found = None if value is None else parse_time(value)
    except ValueError:
        raise click.BadParameter("write a time like 2027-01-01T00:00:00Z") from None
    if found is not None and found <= _now_ms():
        raise click.BadParameter("it has passed")
    return found


_scopes_option = click.option(
    "--scopes",
    callback=_scopes,
    help=f"Of the key, separated by commas, of {', '.join(Scope)}.  [default: {','.join(sorted(DEFAULT_SCOPES))}]",
)
_expires_option = click.option("--expires", "expires_at_ms", callback=_expires, help="Such as 2027-01-01T00:00:00Z.")


@click.group()
def clients() -> None:
    """Add the gateway's clients, issue and revoke their keys.

    Keys are in the file that --file or ONCE_GATEWAY_API_KEYS_FILE names, or in the local stack's. The gateway reads it
    every second. Each change is recorded in operations.audit where a cluster is named.
    """


@clients.command(epilog=_EXIT_CODES)
@click.argument("name")
@_scopes_option
@_expires_option
@api_keys_option
@optional_brokers_option
@json_option()
def add(
    name: str, scopes: AbstractSet[Scope], expires_at_ms: int | None, keyring: Keyring, brokers: Access | None
) -> None:
    """Add the client NAME, and issue its first key.

    The key is shown this once and kept nowhere: give it to the client. The client owns the accounts that it opens. The
    client `operator` owns all accounts that have no other owner.
    """
    _issue(keyring, brokers, name, scopes, expires_at_ms, first=True)


@clients.command("add-key", epilog=_EXIT_CODES)
@click.argument("name")
@_scopes_option
@_expires_option
@api_keys_option
@optional_brokers_option
@json_option()
def add_key(
    name: str, scopes: AbstractSet[Scope], expires_at_ms: int | None, keyring: Keyring, brokers: Access | None
) -> None:
    """Issue another key for the client NAME.

    To replace a key, issue another one, wait until the client uses it (`once clients keys NAME`), and revoke the old
    one.
    """
    _issue(keyring, brokers, name, scopes, expires_at_ms, first=False)


def _issue(
    keyring: Keyring,
    brokers: Access | None,
    client: str,
    scopes: AbstractSet[Scope],
    expires_at_ms: int | None,
    *,
    first: bool,
) -> None:
    def record(key: Key) -> None:
        by, at_ms = operator(), _now_ms()
        added = [ClientAdded(client=client, at_ms=at_ms, by=by)] * first
        issued = KeyIssued(
            client=client,
            at_ms=at_ms,
            by=by,
            key_id=key.id,
            scopes=tuple(sorted(scopes)),
            expires_at_ms=expires_at_ms,
        )
        _record(brokers, [*added, issued])

    with failing_on(KeyringError):
        text, key = keyring.issue(client, scopes, expires_at_ms, first=first, before=record)
    shown = {"client": client, "key_id": key.id, "key": text, **_terms(key), "file": str(keyring.path)}
    answer(shown, f"key     {text}\nkey id  {key.id}")


@clients.command(epilog=_EXIT_CODES)
@click.argument("name")
@click.argument("key_id", required=False)
@api_keys_option
@optional_brokers_option
@json_option()
def revoke(name: str, key_id: str | None, keyring: Keyring, brokers: Access | None) -> None:
    """Revoke the key KEY_ID of the client NAME, or all of its keys.

    The gateway refuses a revoked key within 5 seconds. The revocation is in force even if it cannot be recorded.
    """
    with failing_on(KeyringError):
        revoked = keyring.revoke(name, key_id)
    by, at_ms = operator(), _now_ms()
    try:
        _record(brokers, [KeyRevoked(client=name, at_ms=at_ms, by=by, key_id=key.id) for key in revoked])
    except KafkaUnavailableError as error:
        raise click.ClickException(f"revoked, but not recorded in operations.audit: {error}") from error
    shown = {"client": name, "revoked": [key.id for key in revoked], "file": str(keyring.path)}
    answer(shown, "\n".join(f"{key.id} revoked" for key in revoked))


@clients.command("list", epilog="Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.")
@api_keys_option
@optional_brokers_option
@json_option()
def list_clients(keyring: Keyring, brokers: Access | None) -> None:
    """List the clients, with the number of their keys, their scopes, the next expiry and the last use of any key."""
    with failing_on(KeyringError):
        keys = keyring.read()
    used = _last_uses(brokers)
    by_client: dict[str, list[Key]] = {}
    for key in keys:
        by_client.setdefault(key.client, []).append(key)
    shown = [
        {
            "client": client,
            "keys": len(own),
            "scopes": sorted(frozenset[Scope]().union(*(key.scopes for key in own))),
            "expires": _time(min((key.expires_at_ms for key in own if key.expires_at_ms is not None), default=None)),
            "last_used": _last_used(used, own),
        }
        for client, own in by_client.items()
    ]
    answer({"clients": shown}, lambda: _show(shown, ("client", "keys", "scopes", "expires", "last_used"), "no clients"))


@clients.command("keys", epilog=_EXIT_CODES)
@click.argument("name")
@api_keys_option
@optional_brokers_option
@json_option()
def list_keys(name: str, keyring: Keyring, brokers: Access | None) -> None:
    """List the keys of the client NAME, with their last use."""
    with failing_on(KeyringError):
        own = [key for key in keyring.read() if key.client == name]
    if not own:
        raise click.ClickException(f"{name} has no key in {keyring.path}: see `once clients list`")
    used = _last_uses(brokers)
    shown = [{"key_id": key.id, **_terms(key), "last_used": _last_used(used, [key])} for key in own]
    answer({"client": name, "keys": shown}, lambda: _show(shown, ("key_id", "scopes", "expires", "last_used")))


@clients.command("log", epilog="Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.")
@click.argument("name", required=False)
@click.option("--since", "since_ms", type=iso_ms, help="ISO 8601; UTC unless it names an offset.  [default: a day ago]")
@brokers_option
@json_option()
def log(name: str | None, since_ms: int | None, brokers: Access) -> None:
    """Show operations.audit: changes of clients and keys, uses of keys and refused requests, of NAME or of all."""
    since = _now_ms() - _DAY_MS if since_ms is None else since_ms
    events = asyncio.run(read_events(brokers, since))
    shown = [_event(event) for event in events if name in {None, event.client}]
    columns = ("time", "event", "client", "key_id", "requests", "detail")
    answer({"since": iso_time(since), "events": shown}, lambda: _show(list(map(_flat, shown)), columns, "no events"))


@clients.command(epilog="Exit codes: 0 in force (also if it was before), 1 not, 2 wrong usage.")
@brokers_option
@json_option()
def enforce(brokers: Access) -> None:
    """Enforce from now on that clients debit their own accounts only.

    For an installation from before clients owned accounts: all payments so far, and all accounts, belong to the client
    `operator`. Stop the ledger first, and start it afterwards. It cannot be undone. A new installation has it from its
    first payment on.
    """
    found, is_new = asyncio.run(enforce_ownership(brokers, operator()))
    since = f"since {iso_time(found.made_at_ms)}" + ("" if is_new else ", as before")
    text = f"ownership is enforced {since}, from these offsets of payments.raw on: {' '.join(map(str, found.raw_from))}"
    answer({**msgspec.to_builtins(found), "new": is_new}, text)


def _record(brokers: Access | None, events: list[AuditEvent]) -> None:
    if brokers is None:
        note("not recorded in operations.audit: no cluster is named")
        return
    asyncio.run(write_events(brokers, events))


def _last_uses(brokers: Access | None) -> dict[KeyName, int]:
    """Last uses; without them if the cluster does not answer, because the keys are in the file."""
    if brokers is None:
        note("last uses are not known: no cluster is named")
        return {}
    try:
        return last_uses(asyncio.run(read_events(brokers, _now_ms() - _LAST_USE_DAYS * _DAY_MS)))
    except KafkaUnavailableError as error:
        note(f"last uses are not known: {error}")
        return {}


def _last_used(used: dict[KeyName, int], keys: Iterable[Key]) -> str | None:
    return _time(max((used[key.client, key.id] for key in keys if (key.client, key.id) in used), default=None))


def _terms(key: Key) -> dict[str, Any]:
    return {"scopes": sorted(key.scopes), "expires": _time(key.expires_at_ms)}


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_text(at_ms)


def _event(event: AuditEvent) -> dict[str, Any]:
    fields = msgspec.to_builtins(event)
    kind, client, at_ms = (fields.pop(name) for name in ("type", "client", "at_ms"))
    return {"time": iso_time(at_ms), "event": kind, "client": client, **fields}


def _flat(event: dict[str, Any]) -> dict[str, Any]:
    """An event as a row of a table: what only some events have is in `detail`."""
    columns = {name: event.get(name) for name in ("time", "event", "client", "key_id", "requests")}
    further = {name: event[name] for name in ("by", "scopes", "route", "reason", "raw_from") if name in event}
    return {**columns, "detail": " ".join(f"{name}={_text(value)}" for name, value in further.items())}


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], none: str = "") -> None:
    cells = [{name: _text(value) for name, value in row.items()} for row in rows]
    print_rows(cells, columns, none=none, width_chars=_WIDTH_CHARS, no_wrap=("key_id", "time"))


def _text(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
