"""The fault of each alert. Unit tests compare it with the rules, and docs/drills with it.

The order is that of a run: quick ones first, those that take brokers away last. A reconciliation that is late
comes before any other outcome, because the monitor goes by the youngest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from deploy.drills.alerts.alert import AlertFault
from deploy.drills.alerts.batches import REFUSALS, BadBatches, gap, oversized, unknown
from deploy.drills.alerts.brokers import LostQuorum, LostReplica, UncleanElection
from deploy.drills.alerts.certificates import ExpiringIdentity
from deploy.drills.alerts.firing import drill
from deploy.drills.alerts.outbox import (
    DeadMailServer,
    DisabledEndpoint,
    LostAnswer,
    RefusingWebhook,
    ScarceMemory,
    UnreachableWebhook,
)
from deploy.drills.alerts.pipeline import (
    BadRecords,
    ComingAndGoing,
    CopiedRecord,
    LateWork,
    SlowRestore,
    StoppedUnderLoad,
)
from deploy.drills.alerts.reconciliation import Outcome
from deploy.drills.alerts.rules import ThresholdLeftOut
from deploy.drills.alerts.services import ExpiringKey, Restarting
from deploy.drills.alerts.transactions import (
    HangingTransaction,
    RefusedMarker,
    RefusedPostings,
    SecondProducer,
    StoppedInTransaction,
)
from deploy.drills.drill import Drill
from deploy.drills.faults.processes import Pause, TakeAway
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_DEDUPLICATED

NOT_MADE: Final[Mapping[str, str]] = {
    "SequenceDuplicated": (
        "No broker of this version answers DUPLICATE_SEQUENCE_NUMBER: a batch that it remembers counts as written, an "
        "older one is OUT_OF_ORDER_SEQUENCE_NUMBER. The name is left in the clients' table of errors only."
    )
}
"""Alerts without a drill, and why their fault cannot be made here."""

ALERTS: Final = (
    AlertFault(
        "ProducerFenced",
        "A second producer initialises a transactional.id of transform, which then has payments to price.",
        partial(SecondProducer, "transform-0", 1),
        {"job": "kafka", "request": "AddPartitionsToTxn", "error": "PRODUCER_FENCED"},
        quick=True,
    ),
    AlertFault(
        "DeadLettersRising",
        "Ten payments without an amount are written to payments.raw, past the gateway.",
        BadRecords,
        {"job": "ingest", "reason": "field_missing"},
        quick=True,
    ),
    AlertFault(
        "TransactionHanging",
        "The ledger gets SIGSTOP inside a transaction, and SIGCONT after the brokers have aborted it.",
        partial(StoppedInTransaction, "ledger", 3),
        {"transactional_id": "ledger-0"},
        within_s=35,
        ends_itself=True,
        quick=True,
    ),
    AlertFault(
        "LastStableOffsetStuck",
        "transform gets SIGSTOP inside a transaction, and SIGCONT after the brokers have aborted it.",
        partial(StoppedInTransaction, "transform", 2),
        {"topic": LEDGER_TRANSFERS, "partition": "2"},
        within_s=35,
        ends_itself=True,
    ),
    AlertFault(
        "TransactionWithoutCoordinator",
        "While the brokers do not verify, a batch is taken into a transaction that no coordinator knows.",
        partial(HangingTransaction, (PAYMENTS_DEDUPLICATED, 3)),
        {"topic": PAYMENTS_DEDUPLICATED, "partition": "3"},
    ),
    AlertFault(
        "TransactionsAborting",
        "ledger.postings takes only records of 200 bytes while payments flow.",
        RefusedPostings,
        {"job": "ledger", "cause": "MessageSizeTooLargeError"},
        within_s=60,
    ),
    AlertFault(
        "TransactionOutcomeUnknown",
        "A broker gets SIGSTOP while payments flow, and SIGCONT when transactions have given it up.",
        partial(StoppedUnderLoad, "broker-1"),
        {"job": "ingest|transform|ledger|outbox"},
    ),
    AlertFault(
        "ProducerInitStalled",
        "ingest is killed in a transaction of which one partition refuses the coordinator's marker, and starts again.",
        partial(RefusedMarker, "ingest", PAYMENTS_ACCEPTED, 4),
        {"transactional_id": "ingest-0"},
    ),
    AlertFault(
        "RecordsFailing",
        "A producer writes a record that is larger than its topic takes.",
        partial(BadBatches, oversized),
        {"job": "kafka", "request": "Produce", "error": "MESSAGE_TOO_LARGE"},
    ),
    AlertFault(
        "SequenceOutOfOrder",
        "A producer leaves out five sequence numbers.",
        partial(BadBatches, gap),
        {"job": "kafka", "request": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER"},
    ),
    AlertFault(
        "SourceRepeated",
        "A committed record of payments.accepted is written once more, key, value and headers.",
        partial(CopiedRecord, 4),
        {"job": "transform", "topic": PAYMENTS_ACCEPTED},
    ),
    AlertFault(
        "VerificationsFailing",
        "Producers write to a partition that was never added to their transactions.",
        partial(BadBatches, unknown, REFUSALS),
        {"job": "kafka", "broker": "[0-2]"},
    ),
    AlertFault(
        "ConsumerLagGrowing",
        "transform gets SIGSTOP while payments come in.",
        partial(StoppedUnderLoad, "transform"),
        {"group": "transform", "topic": PAYMENTS_ACCEPTED},
        within_s=60,
    ),
    AlertFault(
        "EndToEndLatencyHigh",
        "transform gets SIGSTOP, payments come in, and it gets SIGCONT after 20 s.",
        partial(LateWork, "transform"),
        {"hop": "ledger.postings"},
        within_s=50,
    ),
    AlertFault(
        "RestoreSlow",
        "ingest is started on a changelog of 10 MB while a quota lets its reader have 200 kB/s.",
        SlowRestore,
        {"job": "ingest", "partition": "0"},
        within_s=50,
    ),
    AlertFault(
        "RebalanceStorm",
        "Three further instances of the ledger join its group and leave it, one after the other.",
        partial(ComingAndGoing, "ledger"),
        {"job": "ledger"},
    ),
    AlertFault(
        "ServiceRestarting",
        "transform is killed three times, each time as soon as it is seen to run again.",
        partial(Restarting, "transform"),
        {"job": "transform", "instance": "transform-0"},
    ),
    AlertFault(
        "ApiKeyExpires",
        "A client gets a key that expires in an hour.",
        ExpiringKey,
        {"job": "gateway", "instance": "gateway-0"},
    ),
    AlertFault(
        "ServiceDown",
        "ingest gets SIGSTOP.",
        partial(Pause, "ingest"),
        {"job": "ingest", "instance": "ingest-0"},
    ),
    AlertFault(
        "MonitorBlind",
        "The monitor gets SIGSTOP.",
        partial(Pause, "monitor"),
        {"job": "monitor"},
        within_s=60,
    ),
    AlertFault(
        "CertificateExpires",
        "The monitor is started with an identity that ends in 20 days.",
        ExpiringIdentity,
        {"job": "monitor", "certificate": "identity"},
    ),
    AlertFault(
        "RedisDistrusted",
        "Redis gets SIGSTOP.",
        partial(Pause, "redis"),
        {"job": "outbox", "instance": "outbox-0"},
    ),
    AlertFault(
        "RedisDown",
        "Redis is killed, and its restart held back.",
        partial(TakeAway, "redis"),
        {"job": "redis", "instance": "redis-0"},
    ),
    AlertFault(
        "RedisMemoryHigh",
        "Redis' maxmemory is lowered to a tenth more than it uses, and set back.",
        ScarceMemory,
        {"job": "redis", "instance": "redis-0"},
    ),
    AlertFault(
        "OutboxStopped",
        "Thirty notices are due at a webhook that is down, and later comes up.",
        UnreachableWebhook,
        {},
        within_s=120,
    ),
    AlertFault(
        "OutboxChannelStopped",
        "Thirty mails are due at a mail server that is down, while a webhook gets its effects.",
        DeadMailServer,
        {"channel": "email"},
        within_s=150,
    ),
    AlertFault(
        "EndpointFailing",
        "Thirty notices are due at a webhook that is down, and later comes up.",
        UnreachableWebhook,
        {},
        within_s=120,
    ),
    AlertFault(
        "EndpointDisabled",
        "A webhook is down, and 18 seconds of failures disable an endpoint. An operator enables it.",
        DisabledEndpoint,
        {},
        within_s=120,
    ),
    AlertFault(
        "OutboxEffectsFailed",
        "A webhook answers 404.",
        RefusingWebhook,
        {"kind": "notice"},
    ),
    AlertFault(
        "OutboxEffectsInDoubt",
        "A mail server accepts a mail and drops the connection before it says so.",
        LostAnswer,
        {"kind": "notice"},
    ),
    AlertFault(
        "ReconciliationLate",
        "The last outcome in reconciliation.runs is two days old.",
        partial(Outcome, "000001-late", age_days=2),
        {"job": "monitor"},
    ),
    AlertFault(
        "ReconciliationNotClean",
        "The last outcome in reconciliation.runs has breaks.",
        partial(Outcome, "000002-unclean", lost=2),
        {"job": "monitor", "instance": "monitor-0"},
    ),
    AlertFault(
        "ThresholdsMissing",
        "Prometheus reloads its rules with one threshold left out.",
        partial(ThresholdLeftOut, "lag_offsets"),
        {"threshold": "lag_offsets"},
    ),
    AlertFault(
        "PartitionsUnderMinIsr",
        "A broker is killed that has a replica of a topic with three replicas and min.insync.replicas 3.",
        partial(LostReplica, 2, (0, 1, 2), 3),
        {"job": "kafka", "broker": "[01]"},
    ),
    AlertFault(
        "PartitionsOffline",
        "The broker is killed that has the only replica of a topic.",
        partial(LostReplica, 2, (2,), 1),
        {"job": "kafka"},
    ),
    AlertFault(
        "UncleanLeaderElection",
        "On a topic that allows it, the replica that has everything is killed while one that has not comes back.",
        UncleanElection,
        {"job": "kafka"},
        within_s=60,
    ),
    AlertFault(
        "ControllerMissing",
        "Two of the three controllers are killed.",
        partial(LostQuorum, 1, 2),
        {"job": "kafka"},
        within_s=60,
    ),
)
"""Every alert that has a drill, in the order of a run."""

DRILLS: Final[tuple[Drill, ...]] = tuple(drill(alert, place) for place, alert in enumerate(ALERTS, 1))
"""Their drills."""
