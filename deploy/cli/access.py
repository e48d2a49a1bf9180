"""`once access`: apply the project's access rules to the brokers, or compare them."""

import asyncio
import sys

import click

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.refusing import refusing
from shared.kafka.admin.acls import ALLOW, EVERY_HOST, Entry, NoAuthorizerError, ensure_rules, entry, find_rules
from shared.kafka.admin.rules import Kind, Operation, Pattern, rules
from shared.kafka.client.access import Bootstrap


@click.group(cls=refusing(NoAuthorizerError))
def access() -> None:
    """Grant each service what it needs on the brokers, and no more.

    docs/access.md lists the rules. `once up --secure` applies them to the local stack.
    """


@access.command()
@bootstrap_servers_option
def apply(bootstrap_servers: Bootstrap) -> None:
    """Create the rules that are missing, and remove every other one.

    The cluster must be this system's own: rules of others go.

    Exit codes: 0 done, 1 no answer, 78 refused, or the brokers check no rules.
    """
    changed = asyncio.run(ensure_rules(bootstrap_servers))
    _show(changed.created, changed.removed)


@access.command()
@bootstrap_servers_option
def check(bootstrap_servers: Bootstrap) -> None:
    """Show what `apply` would change.

    Exit codes: 0 nothing, 1 something or no answer, 78 refused, or the brokers check no rules.
    """
    found, wanted = asyncio.run(find_rules(bootstrap_servers)), frozenset(map(entry, rules()))
    _show(wanted - found, found - wanted)
    sys.exit(0 if found == wanted else 1)


def _show(missing: "frozenset[Entry] | tuple[Entry, ...]", surplus: "frozenset[Entry] | tuple[Entry, ...]") -> None:
    for sign, entries in (("+", missing), ("-", surplus)):
        for one in sorted(entries):
            click.echo(f"{sign} {_words(one)}")


def _words(one: Entry) -> str:
    kinds, operations = {int(kind): kind.name for kind in Kind}, {int(known): known.name for known in Operation}
    name = one.resource_name + ("*" if one.pattern_type == Pattern.PREFIXED else "")
    kind = kinds.get(one.resource_type, f"resource type {one.resource_type}").lower().replace("_", " ")
    operation = operations.get(one.operation, f"operation {one.operation}")
    host = "" if one.host == EVERY_HOST else f" from {one.host}"
    permission = "" if one.permission_type == ALLOW else " (not an allowance)"
    return f"{one.principal} {operation} on {kind} {name}{host}{permission}"
