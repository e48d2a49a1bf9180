"""The drill of each alert. Unit tests compare it with the rules, and docs/drills with it.

The order is that of `make drills`: quick ones first, those that take brokers away last. A reconciliation that is late
comes before any other outcome, because the monitor goes by the youngest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_DEDUPLICATED
from tests.drills.alerts.batches import REFUSALS, BadBatches, gap, oversized, unknown
from tests.drills.alerts.brokers import LostQuorum, LostReplica, UncleanElection
from tests.drills.alerts.fault import Drill
from tests.drills.alerts.outbox import LostAnswer, RefusingWebhook, UnreachableWebhook
from tests.drills.alerts.pipeline import (
    BadRecords,
    ComingAndGoing,
    CopiedRecord,
    LateWork,
    SlowRestore,
    StoppedUnderLoad,
)
from tests.drills.alerts.reconciliation import Outcome
from tests.drills.alerts.rules import ThresholdLeftOut
from tests.drills.alerts.services import Restarting, Stopped, TakenAway
from tests.drills.alerts.transactions import (
    HangingTransaction,
    RefusedMarker,
    RefusedPostings,
    SecondProducer,
    SilentBroker,
    StoppedInTransaction,
)

NOT_MADE: Final[Mapping[str, str]] = {
    "SequenceDuplicated": (
        "No broker of this version answers DUPLICATE_SEQUENCE_NUMBER: a batch that it remembers counts as written, an "
        "older one is OUT_OF_ORDER_SEQUENCE_NUMBER. The name is left in the clients' table of errors only."
    )
}
"""Alerts without a drill, and why their fault cannot be made here."""

QUICK: Final = (
    Drill(
        "ProducerFenced",
        "A second producer initialises a transactional.id of transform, which then has payments to price.",
        partial(SecondProducer, "transform-0", 1),
        {"job": "kafka", "request": "AddPartitionsToTxn", "error": "PRODUCER_FENCED"},
    ),
    Drill(
        "DeadLettersRising",
        "Ten payments without an amount are written to payments.raw, past the gateway.",
        BadRecords,
        {"job": "ingest", "reason": "field_missing"},
    ),
    Drill(
        "TransactionHanging",
        "The ledger gets SIGSTOP inside a transaction, and SIGCONT after the brokers have aborted it.",
        partial(StoppedInTransaction, "ledger", 3),
        {"transactional_id": "ledger-0"},
        within_s=35,
        ends_itself=True,
    ),
)
"""Part of every test run."""

OTHERS: Final = (
    Drill(
        "LastStableOffsetStuck",
        "transform gets SIGSTOP inside a transaction, and SIGCONT after the brokers have aborted it.",
        partial(StoppedInTransaction, "transform", 2),
        {"topic": LEDGER_TRANSFERS, "partition": "2"},
        within_s=35,
        ends_itself=True,
    ),
    Drill(
        "TransactionWithoutCoordinator",
        "While the brokers do not verify, a batch is taken into a transaction that no coordinator knows.",
        partial(HangingTransaction, (PAYMENTS_DEDUPLICATED, 3)),
        {"topic": PAYMENTS_DEDUPLICATED, "partition": "3"},
    ),
    Drill(
        "TransactionsAborting",
        "ledger.postings takes only records of 200 bytes while payments flow.",
        RefusedPostings,
        {"job": "ledger", "cause": "MessageSizeTooLargeError"},
        within_s=60,
    ),
    Drill(
        "TransactionOutcomeUnknown",
        "A broker gets SIGSTOP while payments flow, and SIGCONT when transactions have given it up.",
        partial(SilentBroker, "broker-1"),
        {"job": "ingest|transform|ledger|outbox"},
    ),
    Drill(
        "ProducerInitStalled",
        "ingest is killed in a transaction of which one partition refuses the coordinator's marker, and starts again.",
        partial(RefusedMarker, "ingest", PAYMENTS_ACCEPTED, 4),
        {"transactional_id": "ingest-0"},
    ),
    Drill(
        "RecordsFailing",
        "A producer writes a record that is larger than its topic takes.",
        partial(BadBatches, oversized),
        {"job": "kafka", "request": "Produce", "error": "MESSAGE_TOO_LARGE"},
    ),
    Drill(
        "SequenceOutOfOrder",
        "A producer leaves out five sequence numbers.",
        partial(BadBatches, gap),
        {"job": "kafka", "request": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER"},
    ),
    Drill(
        "SourceRepeated",
        "A committed record of payments.accepted is written once more, key, value and headers.",
        partial(CopiedRecord, 4),
        {"job": "transform", "topic": PAYMENTS_ACCEPTED},
    ),
    Drill(
        "VerificationsFailing",
        "Producers write to a partition that was never added to their transactions.",
        partial(BadBatches, unknown, REFUSALS),
        {"job": "kafka", "broker": "[0-2]"},
    ),
    Drill(
        "ConsumerLagGrowing",
        "transform gets SIGSTOP while payments come in.",
        partial(StoppedUnderLoad, "transform"),
        {"group": "transform", "topic": PAYMENTS_ACCEPTED},
        within_s=60,
    ),
    Drill(
        "EndToEndLatencyHigh",
        "transform gets SIGSTOP, payments come in, and it gets SIGCONT after 20 s.",
        partial(LateWork, "transform"),
        {"hop": "ledger.postings"},
        within_s=50,
    ),
    Drill(
        "RestoreSlow",
        "ingest is started on a changelog of 10 MB while a quota lets its reader have 200 kB/s.",
        SlowRestore,
        {"job": "ingest", "partition": "0"},
        within_s=50,
    ),
    Drill(
        "RebalanceStorm",
        "Three further instances of the ledger join its group and leave it, one after the other.",
        partial(ComingAndGoing, "ledger"),
        {"job": "ledger"},
    ),
    Drill(
        "ServiceRestarting",
        "transform is killed three times, each time as soon as it is seen to run again.",
        partial(Restarting, "transform"),
        {"job": "transform", "instance": "transform-0"},
    ),
    Drill(
        "ServiceDown",
        "ingest gets SIGSTOP.",
        partial(Stopped, "ingest"),
        {"job": "ingest", "instance": "ingest-0"},
    ),
    Drill(
        "MonitorBlind",
        "The monitor gets SIGSTOP.",
        partial(Stopped, "monitor"),
        {"job": "monitor"},
        within_s=60,
    ),
    Drill(
        "RedisDistrusted",
        "Redis gets SIGSTOP.",
        partial(Stopped, "redis"),
        {"job": "outbox", "instance": "outbox-0"},
    ),
    Drill(
        "RedisDown",
        "Redis is killed, and its restart held back.",
        partial(TakenAway, "redis"),
        {"job": "redis", "instance": "redis-0"},
    ),
    Drill(
        "OutboxStopped",
        "Thirty notices are due at a webhook that is down, and later comes up.",
        UnreachableWebhook,
        {},
        within_s=120,
    ),
    Drill(
        "OutboxEffectsFailed",
        "A webhook answers 404.",
        RefusingWebhook,
        {"kind": "notice"},
    ),
    Drill(
        "OutboxEffectsInDoubt",
        "A mail server accepts a mail and drops the connection before it says so.",
        LostAnswer,
        {"kind": "notice"},
    ),
    Drill(
        "ReconciliationLate",
        "The last outcome in reconciliation.runs is two days old.",
        partial(Outcome, "000001-late", age_days=2),
        {"job": "monitor"},
    ),
    Drill(
        "ReconciliationNotClean",
        "The last outcome in reconciliation.runs has breaks.",
        partial(Outcome, "000002-unclean", lost=2),
        {"job": "monitor", "instance": "monitor-0"},
    ),
    Drill(
        "ThresholdsMissing",
        "Prometheus reloads its rules with one threshold left out.",
        partial(ThresholdLeftOut, "lag_offsets"),
        {"threshold": "lag_offsets"},
    ),
    Drill(
        "PartitionsUnderMinIsr",
        "A broker is killed that has a replica of a topic with three replicas and min.insync.replicas 3.",
        partial(LostReplica, 2, "0:1:2", 3),
        {"job": "kafka", "broker": "[01]"},
    ),
    Drill(
        "PartitionsOffline",
        "The broker is killed that has the only replica of a topic.",
        partial(LostReplica, 2, "2", 1),
        {"job": "kafka"},
    ),
    Drill(
        "UncleanLeaderElection",
        "On a topic that allows it, the replica that has everything is killed while one that has not comes back.",
        UncleanElection,
        {"job": "kafka"},
        within_s=60,
    ),
    Drill(
        "ControllerMissing",
        "Two of the three controllers are killed.",
        partial(LostQuorum, 1, 2),
        {"job": "kafka"},
        within_s=60,
    ),
)

DRILLS: Final = (*QUICK, *OTHERS)
