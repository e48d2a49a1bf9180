"""Checks at start-up whether the brokers grant a service the rights that it needs.

A missing right is then one line at the start, not a failure at the first record.

Invariant: the check writes nothing and initialises no transactional.id. A cluster that does not answer passes: the
service's own start reports it. Clusters without TLS are not checked.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from aiokafka.client import CoordinationType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.types import Array, Boolean, Bytes, Int16, Int32, Schema, String

from shared.eos.errors import UnsafeSettingsError
from shared.eos.safety import transactional_id
from shared.kafka.admin.rules import Kind, Operation, Rule, rules_of, transactional_ids
from shared.kafka.client.access import Access, access
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError, denied
from shared.kafka.client.txn_requests import OneVersion
from shared.settings import RuntimeSettings

ANSWER_S: Final = 5.0
_ERRORS: Final = {Kind.TOPIC: 29, Kind.GROUP: 30, Kind.TRANSACTIONAL_ID: 53}
"""The broker's answer to a client without the right to DESCRIBE."""
_TEXT = String("utf-8")


class _MetadataResponse(Response):  # type: ignore[misc] # the client ships no types
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("name", _TEXT),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _Metadata(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """Topics, and the operations that the client may do on each (KIP-430)."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", Array(_TEXT)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _DescribeGroupsResponse(Response):  # type: ignore[misc] # the same
    API_KEY = 15
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", _TEXT),
                ("state", _TEXT),
                ("protocol_type", _TEXT),
                ("protocol", _TEXT),
                (
                    "members",
                    Array(
                        ("member_id", _TEXT),
                        ("client_id", _TEXT),
                        ("client_host", _TEXT),
                        ("metadata", Bytes),
                        ("assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class _DescribeGroups(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """A group, and the operations that the client may do on it; the client's own class decodes an older version."""

    API_KEY = 15
    API_VERSION = 3
    RESPONSE_TYPE = _DescribeGroupsResponse
    SCHEMA = Schema(("groups", Array(_TEXT)), ("include_authorized_operations", Boolean))


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


def refuse_ungranted(settings: RuntimeSettings, service: str, inputs: Iterable[tuple[str, int]]) -> None:
    """Refuse transactional.ids that access rules do not grant; without TLS they are not checked.

    Args:
        settings: the service's.
        service: its name.
        inputs: every input partition, as (topic, partition).

    Raises:
        UnsafeSettingsError: the pattern makes ids outside of the service's own.
        SettingsError: as `access`.
    """
    if access(settings).tls is None:
        return
    prefix = transactional_ids(service)
    ids = (transactional_id(settings.transactional_id, service, topic, partition) for topic, partition in inputs)
    first = next((made for made in ids if not made.startswith(prefix)), None)
    if first is not None:
        raise UnsafeSettingsError(
            f"ONCE_TRANSACTIONAL_ID makes {first}, and access rules grant {service} {prefix}* alone: begin it with "
            "{service}-"
        )


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
    response = await brokers.ask(node_id, _Metadata(sorted({rule.name for rule in needed}), False, False, True))
    # A topic that does not exist shows rights as well; its absence is reported elsewhere
    allowed = {
        name: 0 if error_code == _ERRORS[Kind.TOPIC] else operations
        for error_code, name, _, _, operations in response.topics
    }
    return [str(rule) for rule in needed if not _has(allowed[rule.name], rule.operation)]


async def _of_group(brokers: Brokers, node_id: int, rule: Rule) -> list[str]:
    found: Any = await brokers.ask(node_id, FindCoordinatorRequest(rule.name, CoordinationType.GROUP))
    if found.error_code == _ERRORS[Kind.GROUP]:
        return [str(rule)]
    if found.error_code:
        return []  # no coordinator for the moment: joining reports a missing right
    response = await brokers.ask(found.coordinator_id, _DescribeGroups([rule.name], True))
    return [str(rule) for error_code, *_, bits in response.groups if not error_code and not _has(bits, rule.operation)]


def _has(bits: int, operation: Operation) -> bool:
    """Whether the bit of an operation is set; READ and WRITE include DESCRIBE, and the brokers say so themselves."""
    return bool(bits & (1 << operation))
