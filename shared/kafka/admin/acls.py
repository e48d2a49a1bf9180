"""Brings the brokers' access rules (ACLs) to the state of `shared.kafka.admin.rules`.

Invariant: a second call changes nothing; when it returns, every broker enforces the rules. It needs a super user or the
right to ALTER the cluster.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from shared.kafka.admin.rules import Rule, rules
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.errors import unavailable
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values

POLL_S = 0.1
_ACL = ("Operation", "PermissionType")
_CREATION = ("ResourceType", "ResourceName", "ResourcePatternType", "Principal", "Host", *_ACL)
_FILTER = ("ResourceTypeFilter", "ResourceNameFilter", "PatternTypeFilter", "PrincipalFilter", "HostFilter", *_ACL)
"""Fields of requests, in the order of `Entry`."""
_ANY: Final = 1
ALLOW: Final = 3
EVERY_HOST: Final = "*"
_SECURITY_DISABLED: Final = 54

Outcome = tuple[int, str | None]
"""The result for one rule: error code and message."""


class Entry(NamedTuple):
    """One rule as the brokers store it, in the order of the protocol's fields."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class Changed(NamedTuple):
    """The changes made: rules created, and unknown rules removed."""

    created: tuple[Entry, ...]
    removed: tuple[Entry, ...]


class NoAuthorizerError(Exception):
    """The brokers check no rules."""


def entry(rule: Rule) -> Entry:
    """Encode a rule as the brokers store it. Pure."""
    principal = f"User:{rule.principal}"
    return Entry(rule.kind, rule.name, rule.pattern, principal, EVERY_HOST, rule.operation, ALLOW)


async def ensure_rules(
    bootstrap_servers: Bootstrap, wanted: Iterable[Rule] | None = None, *, deadline_s: float = 30
) -> Changed:
    """Create the rules that are missing, remove every other one, and wait until all brokers know.

    The cluster belongs to this system: an unknown rule could let a stranger in.

    Args:
        wanted: all rules; those of `rules()` when None.
        deadline_s: seconds for all of it.

    Raises:
        NoAuthorizerError: the brokers have no authorizer.
        DeniedError: the principal may not change rules.
        KafkaUnavailableError: no broker answers, or not all know the rules in time.
    """
    goal = frozenset(entry(rule) for rule in (rules() if wanted is None else wanted))
    deadline = time.monotonic() + deadline_s
    created: set[Entry] = set()
    removed: set[Entry] = set()
    async with Cluster(bootstrap_servers, deadline_s=deadline_s) as cluster:
        while True:
            views = [await _entries(cluster, node_id) for node_id in cluster.brokers]
            if views:  # for a moment the metadata may name no broker
                # The rules of every broker, and those of any: a change reaches the brokers one after the other
                missing = goal - frozenset.intersection(*views)
                surplus = frozenset.union(*views) - goal
                if not missing and not surplus:
                    return Changed(tuple(sorted(created)), tuple(sorted(removed)))
                await _create(cluster, missing - created)
                await _remove(cluster, surplus - removed)
                created |= missing
                removed |= surplus
            if time.monotonic() > deadline:
                raise unavailable(bootstrap_servers, f"not every broker knows the rules after {deadline_s} s")
            await asyncio.sleep(POLL_S)
            await cluster.refresh()  # a broker that registers meanwhile must get the rules as well


async def find_rules(bootstrap_servers: Bootstrap) -> frozenset[Entry]:
    """Return the rules as one broker has them.

    Raises:
        NoAuthorizerError, DeniedError, KafkaUnavailableError: as `ensure_rules`.
    """
    async with Cluster(bootstrap_servers) as cluster:

        async def some() -> int:
            return cluster.some_broker

        return await _entries(cluster, await cluster.retry(some, "the rules cannot be read"))


async def _entries(cluster: Cluster, node_id: int) -> frozenset[Entry]:
    async def attempt() -> frozenset[Entry]:
        every = dict(zip(_FILTER, (_ANY, None, _ANY, None, None, _ANY, _ANY), strict=True))
        response = await cluster.send(node_id, Request("DescribeAcls", 1, every))
        if response["ErrorCode"] == _SECURITY_DISABLED:
            raise NoAuthorizerError(
                "the brokers have no authorizer, so every client may do everything: set authorizer.class.name, as "
                "deploy/local/kafka/broker_config.py does"
            )
        check(response["ErrorCode"], response["ErrorMessage"] or "the rules")
        return frozenset(_entry(resource, acl) for resource in response["Resources"] for acl in resource["Acls"])

    return await cluster.retry(attempt, f"the rules of broker {node_id} cannot be read")


def _entry(resource: Values, acl: Values) -> Entry:
    named = resource["ResourceType"], resource["ResourceName"], resource["PatternType"]
    return Entry(*named, acl["Principal"], acl["Host"], acl["Operation"], acl["PermissionType"])


async def _create(cluster: Cluster, missing: Iterable[Entry]) -> None:
    creations = [dict(zip(_CREATION, one, strict=True)) for one in sorted(missing)]
    if creations:
        request = Request("CreateAcls", 1, {"Creations": creations})
        await _change(
            cluster, request, lambda response: map(_outcome, response["Results"]), "the rules cannot be written"
        )


async def _remove(cluster: Cluster, surplus: Iterable[Entry]) -> None:
    filters = [dict(zip(_FILTER, one, strict=True)) for one in sorted(surplus)]
    if filters:
        await _change(cluster, Request("DeleteAcls", 1, {"Filters": filters}), _removals, "rules cannot be removed")


def _removals(response: Values) -> Iterator[Outcome]:
    """Return the results of each filter, and of each rule that it matched."""
    for result in response["FilterResults"]:
        yield _outcome(result)
        yield from map(_outcome, result["MatchingAcls"])


def _outcome(result: Values) -> Outcome:
    return result["ErrorCode"], result["ErrorMessage"]


async def _change(
    cluster: Cluster, request: Request, outcomes: Callable[[Values], Iterable[Outcome]], what: str
) -> None:
    """Send a change until each of its rules has been changed; repeating a change is harmless."""

    async def attempt() -> None:
        for error_code, message in outcomes(await cluster.send_to_any(request)):
            check(error_code, message or "a rule")

    await cluster.retry(attempt, what, refresh=False)
