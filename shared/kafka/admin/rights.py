"""Checks at start-up whether the brokers grant a service the rights that it needs.

A missing right is then one line at the start, not a failure at the first record.

Invariant: the check writes nothing and initialises no transactional.id. A cluster that does not answer passes: the
service's own start reports it. Clusters without TLS are not checked.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from aiokafka.client import CoordinationType
from aiokafka.protocol.coordination import FindCoordinatorRequest

from shared.kafka.admin.rules import Kind, Operation, Rule, rules_of
from shared.kafka.client.access import Access
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError, denied
from shared.kafka.client.requests import Request

ANSWER_S: Final = 5.0
_ERRORS: Final = {Kind.TOPIC: 29, Kind.GROUP: 30, Kind.TRANSACTIONAL_ID: 53}
"""The broker's answer to a client without the right to DESCRIBE."""


async def check_rights(access: Access, principal: str) -> None:
    """Refuse to start where the brokers would refuse later.

    Args:
        access: the service's.
        principal: the principal whose rules the service needs; its certificate may name another one by mistake.

    Raises:
        SettingsError: a file of `access` cannot be used.
        DeniedError: the brokers refuse the certificate, or a right is missing.
    """
    if access.tls is None:
        return
    access.tls.context()
    access.tls.principal  # noqa: B018 # an expired certificate is refused here
    try:
        async with Brokers(access, client_id=f"{principal}-rights", answer_s=ANSWER_S) as brokers:
            missing = await _missing(brokers, rules_of(principal))
    except DeniedError:
        raise
    except (KafkaUnavailableError, BrokerSilentError):
        return
    if missing:
        raise denied(access, f"as {principal} it needs {'; '.join(missing)}")


async def _missing(brokers: Brokers, needed: Iterable[Rule]) -> list[str]:
    by_kind: dict[Kind, list[Rule]] = defaultdict(list)
    for rule in needed:
        by_kind[rule.kind].append(rule)
    view = await brokers.view([])
    node_id = min(view.brokers)
    missing = await _of_topics(brokers, node_id, by_kind[Kind.TOPIC])
    for rule in by_kind[Kind.GROUP]:
        missing += await _of_group(brokers, node_id, rule)
    for rule in by_kind[Kind.TRANSACTIONAL_ID]:
        response = await brokers.ask(node_id, FindCoordinatorRequest(rule.name, CoordinationType.TRANSACTION))
        if response.error_code == _ERRORS[rule.kind]:
            missing.append(str(rule))
    return missing


async def _of_topics(brokers: Brokers, node_id: int, needed: list[Rule]) -> list[str]:
    asked = {
        "Topics": [{"Name": name} for name in sorted({rule.name for rule in needed})],
        "AllowAutoTopicCreation": False,
        "IncludeTopicAuthorizedOperations": True,  # KIP-430
    }
    response = await brokers.ask(node_id, Request("Metadata", 8, asked))
    # A topic that does not exist shows rights as well; its absence is reported elsewhere
    allowed = {
        topic["Name"]: 0 if topic["ErrorCode"] == _ERRORS[Kind.TOPIC] else topic["TopicAuthorizedOperations"]
        for topic in response["Topics"]
    }
    return [str(rule) for rule in needed if not _has(allowed[rule.name], rule.operation)]


async def _of_group(brokers: Brokers, node_id: int, rule: Rule) -> list[str]:
    found: Any = await brokers.ask(node_id, FindCoordinatorRequest(rule.name, CoordinationType.GROUP))
    if found.error_code == _ERRORS[Kind.GROUP]:
        return [str(rule)]
    if found.error_code:
        return []  # no coordinator for the moment: joining reports a missing right
    asked = {"Groups": [rule.name], "IncludeAuthorizedOperations": True}
    response = await brokers.ask(found.coordinator_id, Request("DescribeGroups", 3, asked))
    return [
        str(rule)
        for group in response["Groups"]
        if not group["ErrorCode"] and not _has(group["AuthorizedOperations"], rule.operation)
    ]


def _has(bits: int, operation: Operation) -> bool:
    """Whether the bit of an operation is set; READ and WRITE include DESCRIBE, and the brokers say so themselves."""
    return bool(bits & (1 << operation))
