"""`once access`: apply the project's access rules to the brokers, or compare them."""

import asyncio
import sys
from collections.abc import Iterable

import click

from deploy.cli.cluster import brokers_option
from deploy.cli.output import refusing
from shared.kafka.admin.acls import ALLOW, EVERY_HOST, Entry, NoAuthorizerError, ensure_rules, entry, find_rules
from shared.kafka.admin.rules import Kind, Operation, Pattern, rules
from shared.kafka.client.access import Access

_KINDS = {int(kind): kind.name for kind in Kind}
_OPERATIONS = {int(operation): operation.name for operation in Operation}


@click.group(cls=refusing(NoAuthorizerError))
def access() -> None:
    """Grant each service what it needs on the brokers, and no more.

    docs/access.md lists the rules. `once up --secure` applies them to the local stack.
    """


@access.command()
@brokers_option
def apply(brokers: Access) -> None:
    """Create the rules that are missing, and remove every other one.

    The cluster must be this system's own: rules of others go.

    Exit codes: 0 done, 1 no answer, 78 refused, or the brokers check no rules.
    """
    changed = asyncio.run(ensure_rules(brokers))
    _show(changed.created, changed.removed)


@access.command()
@brokers_option
def check(brokers: Access) -> None:
    """Show what `apply` would change.

    Exit codes: 0 nothing, 1 something or no answer, 78 refused, or the brokers check no rules.
    """
    found, wanted = asyncio.run(find_rules(brokers)), frozenset(map(entry, rules()))
    _show(wanted - found, found - wanted)
    sys.exit(0 if found == wanted else 1)


def _show(missing: Iterable[Entry], surplus: Iterable[Entry]) -> None:
    for sign, entries in (("+", missing), ("-", surplus)):
        for one in sorted(entries):
            click.echo(f"{sign} {_words(one)}")


def _words(one: Entry) -> str:
    name = one.resource_name + ("*" if one.pattern_type == Pattern.PREFIXED else "")
    kind = _KINDS.get(one.resource_type, f"resource type {one.resource_type}").lower().replace("_", " ")
    operation = _OPERATIONS.get(one.operation, f"operation {one.operation}")
    host = "" if one.host == EVERY_HOST else f" from {one.host}"
    permission = "" if one.permission_type == ALLOW else " (not an allowance)"
    return f"{one.principal} {operation} on {kind} {name}{host}{permission}"
