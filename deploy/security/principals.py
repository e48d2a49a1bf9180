"""Principals: the names that certificates carry and that brokers know their peers by. Pure.

Invariant: a principal's name is its certificate's common name, and nothing else of the certificate counts. What each
may do is in shared/kafka/admin/rules.py.
"""

from collections.abc import Sequence
from typing import Final

from shared.kafka.admin.rules import PRINCIPALS

OPERATOR: Final = "operator"
"""The principal of the commands; also sets the rules."""
REDIS: Final = "redis"
"""The outbox's Redis: a server, not a client of the brokers."""
REDIS_EXPORTER: Final = "redis-exporter"
"""Reads Redis' figures. Brokers let it do nothing."""
CLIENTS: Final = (*PRINCIPALS, OPERATOR, REDIS_EXPORTER)
"""Every principal but the servers."""

MAPPING_RULES: Final = "RULE:^CN=([a-z0-9-]+)$/$1/"
"""Kafka's ssl.principal.mapping.rules: the common name is the principal. A subject with any other field fits no rule,
and its bearer is refused."""


def broker(node_id: int) -> str:
    return f"broker-{node_id}"


def super_users(node_ids: Sequence[int]) -> str:
    """Kafka's super.users, to which no rule applies: the brokers and the operator."""
    return ";".join(f"User:{name}" for name in (*map(broker, node_ids), OPERATOR))
