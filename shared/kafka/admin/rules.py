"""Access rules (ACLs) of the brokers, from the topic catalogue, consumer groups and transactional.ids. Pure.

Invariant: a principal may do what its work needs, and nothing else; a transactional.id belongs to one service alone.
The operator and the brokers are super users, whom no rule binds. All others are denied what no rule allows
(StandardAuthorizer, KIP-801, with allow.everyone.if.no.acl.found=false).
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from shared.events import catalogue
from shared.events.catalogue import TOPICS

RECONCILIATION: Final = "reconciliation"
_JOB: Final = "once reconcile"
"""The name of the job in the catalogue."""
PROCESSORS: Final = {
    "ingest": catalogue.PAYMENTS_RAW,
    "transform": catalogue.PAYMENTS_ACCEPTED,
    "ledger": catalogue.LEDGER_TRANSFERS,
    "outbox": catalogue.EFFECTS_REQUESTS,
}
"""Services with transactions, and their inputs; a consumer group has its service's name."""
MEMBERS: Final = (*PROCESSORS, "balances")
"""Services with a consumer group."""
PRINCIPALS: Final = ("gateway", *MEMBERS, "monitor", RECONCILIATION)
"""Principals with rules."""
CLUSTER: Final = "kafka-cluster"
"""Kafka's name of the cluster resource."""
EVERY: Final = "*"
"""Kafka's literal name for every resource of a kind."""


class Kind(IntEnum):
    """The type of a resource, in the numbers of the protocol (ResourceType)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    """The allowed operation, in the numbers of the protocol (AclOperation). READ and WRITE include DESCRIBE."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10


class Pattern(IntEnum):
    """How the name is matched, in the numbers of the protocol (PatternType)."""

    LITERAL = 3
    PREFIXED = 4


class Rule(NamedTuple):
    """One operation that one principal may do.

    Attributes:
        principal: a certificate's common name.
        kind, name: of the resource.
        operation: what is allowed.
        pattern: whether `name` is a whole name or a prefix.
    """

    principal: str
    kind: Kind
    name: str
    operation: Operation
    pattern: Pattern = Pattern.LITERAL

    def __str__(self) -> str:
        shown = f"{self.name}*" if self.pattern is Pattern.PREFIXED else self.name
        return f"{self.operation.name} on {self.kind.name.lower().replace('_', ' ')} {shown}"


def transactional_ids(service: str) -> str:
    """Return the prefix of a service's transactional.ids; no service's name is a prefix of another's."""
    return f"{service}-"


def rules() -> frozenset[Rule]:
    """Return all rules."""
    return frozenset((*_by_catalogue(), *_members(), *_processors(), *_observers()))


def rules_of(principal: str) -> tuple[Rule, ...]:
    """Return one principal's rules, in order."""
    return tuple(sorted(rule for rule in rules() if rule.principal == principal))


def allows(granted: frozenset[Rule], wanted: Rule) -> bool:
    """Whether rules allow an operation, as the brokers decide it: READ and WRITE include DESCRIBE.

    Args:
        granted: the existing rules.
        wanted: an operation on one name.
    """
    return any(
        rule.principal == wanted.principal
        and rule.kind is wanted.kind
        and _fits(rule, wanted.name)
        and wanted.operation in _including(rule.operation)
        for rule in granted
    )


def _fits(rule: Rule, name: str) -> bool:
    return name.startswith(rule.name) if rule.pattern is Pattern.PREFIXED else rule.name in {name, EVERY}


def _including(operation: Operation) -> tuple[Operation, ...]:
    return (operation, Operation.DESCRIBE) if operation in {Operation.READ, Operation.WRITE} else (operation,)


def _by_catalogue() -> Iterator[Rule]:
    """Derive rules from writers and readers; commands are run by the operator, except the nightly job."""
    for topic in TOPICS:
        # A new owner reads its predecessor's records, to complete a torn transaction
        audited = tuple(name for name in topic.writers if name in PROCESSORS)
        for names, operation in ((topic.writers, Operation.WRITE), ((*topic.readers, *audited), Operation.READ)):
            for name in names:
                principal = RECONCILIATION if name == _JOB else name
                if principal in PRINCIPALS:
                    yield Rule(principal, Kind.TOPIC, topic.name, operation)


def _members() -> Iterator[Rule]:
    for service in MEMBERS:
        yield Rule(service, Kind.GROUP, service, Operation.READ)
    # DescribeQuorum, for the clock check
    for service in ("gateway", *MEMBERS):
        yield Rule(service, Kind.CLUSTER, CLUSTER, Operation.DESCRIBE)
    # Group coordinators: the monitor reads the lag of each group, and a cut pins the consumed offsets
    for principal, groups in (("monitor", MEMBERS), (RECONCILIATION, tuple(PROCESSORS))):
        for group in groups:
            yield Rule(principal, Kind.GROUP, group, Operation.DESCRIBE)


def _processors() -> Iterator[Rule]:
    for service in PROCESSORS:
        yield Rule(service, Kind.TRANSACTIONAL_ID, transactional_ids(service), Operation.WRITE, Pattern.PREFIXED)
        # At its start each service reads transaction.max.timeout.ms
        yield Rule(service, Kind.CLUSTER, CLUSTER, Operation.DESCRIBE_CONFIGS)
    # The retention of requests: Redis must remember claims for longer
    yield Rule("outbox", Kind.TOPIC, catalogue.EFFECTS_REQUESTS, Operation.DESCRIBE_CONFIGS)


def _observers() -> Iterator[Rule]:
    # How long superseded reference records are kept: a cut pins it
    for name in catalogue.REFERENCE_TOPICS:
        yield Rule(RECONCILIATION, Kind.TOPIC, name, Operation.DESCRIBE_CONFIGS)
    # DescribeProducers, by which a hanging transaction is found (KIP-664), requires READ
    for name in (*(topic.name for topic in TOPICS), "__consumer_offsets"):
        yield Rule("monitor", Kind.TOPIC, name, Operation.READ)
    yield Rule("monitor", Kind.TOPIC, "__transaction_state", Operation.DESCRIBE)
    # The brokers list only transactions that the principal may describe. A transaction that is not listed seems to hang
    yield Rule("monitor", Kind.TRANSACTIONAL_ID, EVERY, Operation.DESCRIBE)
