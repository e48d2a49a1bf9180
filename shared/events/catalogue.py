"""The topic catalogue: every topic of the system, with its writers and readers. Pure data.

The system's topics are created from this catalogue only, each with ONCE_PARTITIONS partitions. A service refuses to
start when the cluster's partition counts differ from its setting.
"""

from dataclasses import dataclass, field

REPLICATION_FACTOR = 3
"""Unless ONCE_REPLICATION_FACTOR says otherwise."""

PAYMENTS_RAW = "payments.raw"
PAYMENTS_ACCEPTED = "payments.accepted"
PAYMENTS_DEDUPLICATED = "payments.deduplicated"
PAYMENTS_DEAD_LETTER = "payments.dead-letter"
PAYMENTS_IDENTITIES = "payments.identities"
LEDGER_TRANSFERS = "ledger.transfers"
LEDGER_POSTINGS = "ledger.postings"
LEDGER_BALANCES = "ledger.balances"
LEDGER_ACCOUNTS = "ledger.accounts"
TRANSFORM_PROGRESS = "transform.progress"
EFFECTS_REQUESTS = "effects.requests"
EFFECTS_RESULTS = "effects.results"
EFFECTS_WAITING = "effects.waiting"
EFFECTS_DEAD_LETTER = "effects.dead-letter"
REFERENCE_FEES = "reference.fees"
REFERENCE_RATES = "reference.rates"
REFERENCE_BALANCES = "reference.balances"
REFERENCE_SUBSCRIPTIONS = "reference.subscriptions"
REFERENCE_ENDPOINTS = "reference.endpoints"
REFERENCE_TOPICS = (REFERENCE_FEES, REFERENCE_RATES, REFERENCE_SUBSCRIPTIONS)
"""Those that services decide by; a record names the version that decided it."""
RECONCILIATION_RUNS = "reconciliation.runs"
OPERATIONS_REPAIRS = "operations.repairs"
OPERATIONS_AUDIT = "operations.audit"
INSTALLATION = "installation"

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000

TORN_KEPT_MS = _HOUR_MS
"""How long a compacted topic keeps every record of a transaction: within it, a new owner can complete a torn one."""

SUPERSEDED_KEPT_MS = 14 * _DAY_MS
"""How long a superseded fee, rate or subscription is kept: until nightly runs and a weekly audit have seen its use."""

_KEEPS_SUPERSEDED = {"min.compaction.lag.ms": str(SUPERSEDED_KEPT_MS)}
_KEEPS_TRANSACTIONS = {"min.compaction.lag.ms": str(TORN_KEPT_MS)}
_KEEPS_TOMBSTONES = {**_KEEPS_TRANSACTIONS, "delete.retention.ms": str(SUPERSEDED_KEPT_MS)}
"""Keeps transactions, and tombstones: a run after missed nights has to read that an effect waits no more."""

_DEAD_LETTER_MAX_BYTES = 2 * 1024 * 1024  # a raw record of the brokers' default maximum, plus headers


def min_insync_replicas(replication_factor: int) -> int:
    """Return min.insync.replicas: one replica may be lost where there are several."""
    return max(1, replication_factor - 1)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, as on the cluster, with its writers and readers: services or commands, by name."""

    name: str
    key: str  # meaning of the record key
    purpose: str  # one sentence, for the generated documentation
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    compacted: bool = False  # keep the last record of each key instead of all records
    config: dict[str, str] = field(default_factory=dict)  # further topic configuration, Kafka's names

    def settings(self, replication_factor: int = REPLICATION_FACTOR) -> dict[str, str]:
        """Return the whole topic configuration, as CreateTopics takes it."""
        return {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": "-1",
            "min.insync.replicas": str(min_insync_replicas(replication_factor)),
            "unclean.leader.election.enable": "false",
            # A transaction's batches are distinguished from the previous one's by their producer's time
            "message.timestamp.type": "CreateTime",
            **self.config,
        }


TOPICS: tuple[Topic, ...] = (
    Topic(
        PAYMENTS_RAW,
        "debtor account; none when it cannot be read",
        "Payments as received, byte by byte.",
        ("gateway", "once load", "once dead-letters resubmit"),
        ("ingest", "gateway", "monitor", "once reconcile"),
        # Producers of others may compress: the brokers decompress, and check the size of what readers get. They may
        # send any timestamp: Spark cannot read 300,000 years ago, so 100 years are the limit
        config={"compression.type": "uncompressed", "message.timestamp.before.max.ms": str(36_525 * _DAY_MS)},
    ),
    Topic(
        PAYMENTS_ACCEPTED,
        "debtor account",
        "Valid payments and reversals, the first of their identity, in the current schema version.",
        ("ingest", "once repair"),
        ("transform", "gateway", "monitor", "once reconcile"),
    ),
    Topic(
        PAYMENTS_DEDUPLICATED,
        "debtor account",
        "Repeats: the coordinates of the repeat and of the first payment in payments.raw.",
        ("ingest", "once repair"),
        ("gateway", "once reconcile"),
    ),
    Topic(
        PAYMENTS_DEAD_LETTER,
        "as in payments.raw",
        "Refused records, their bytes unchanged, with reason, service and origin in headers.",
        ("ingest", "once repair"),
        ("gateway", "once dead-letters", "once reconcile"),
        config={"max.message.bytes": str(_DEAD_LETTER_MAX_BYTES)},
    ),
    Topic(
        PAYMENTS_IDENTITIES,
        "store key",
        "Changelog of ingest: the last accepted identities of each partition, and the next offset.",
        ("ingest", "once repair"),
        ("ingest", "once verify"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        TRANSFORM_PROGRESS,
        "store key",
        "Changelog of transform: the next offset of each partition.",
        ("transform", "once repair"),
        ("transform", "once verify"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        LEDGER_TRANSFERS,
        "the account whose partition must act: debtor first, then creditor",
        "The ledger's input: debit legs, credit legs, reversals, accounts opened and closed.",
        ("transform", "ledger", "once accounts", "once repair"),
        ("ledger", "monitor", "once reconcile"),
    ),
    Topic(
        LEDGER_POSTINGS,
        "the account whose partition acted",
        "The truth: immutable double-entry postings, declines and account events.",
        ("ledger", "once repair"),
        ("gateway", "balances", "monitor", "once verify", "once reconcile"),
    ),
    Topic(
        EFFECTS_REQUESTS,
        "the account concerned",
        "Intents: effects that the ledger asks for, and operators' decisions on doubtful ones.",
        ("ledger", "once effects resolve", "once endpoints", "once repair"),
        ("outbox", "once verify", "once reconcile"),
        # An intent is not history, ledger.postings is. Its retention bounds the longest replay and so Redis' memory
        config={"retention.ms": str(7 * _DAY_MS), "segment.ms": str(_DAY_MS)},
    ),
    Topic(
        EFFECTS_RESULTS,
        "effect_id",
        "The result of each effect, from which Redis is rebuilt.",
        ("outbox", "once repair"),
        ("outbox", "once effects", "once endpoints", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        EFFECTS_WAITING,
        "store key: waiting/<effect_id>, trust/redis, next_offset",
        "Changelog of the outbox: effects to be retried, and the Redis instance that it trusted.",
        ("outbox", "once repair"),
        ("outbox", "once effects", "once endpoints", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_TOMBSTONES,
    ),
    Topic(
        EFFECTS_DEAD_LETTER,
        "the account concerned",
        "Effects that were refused permanently, given up, or for a disabled endpoint; reason and origin in headers.",
        ("outbox", "once repair"),
        ("once effects", "once verify", "once reconcile"),
    ),
    Topic(
        LEDGER_BALANCES,
        "store key: account/<account>, payment/<sequence>, next_offset",
        "Changelog of the ledger: balances, accounts, and the payments that can still be reversed.",
        ("ledger", "once repair"),
        ("ledger", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        LEDGER_ACCOUNTS,
        "account",
        "The owner, version and terms of each account that was opened or closed.",
        ("ledger", "once repair"),
        ("gateway", "once accounts", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        REFERENCE_FEES,
        "currency",
        "The fee schedule.",
        ("once fees set",),
        ("transform", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_SUPERSEDED,
    ),
    Topic(
        REFERENCE_RATES,
        "currency pair, EUR/USD",
        "The conversion rates.",
        ("once rates set",),
        ("transform", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_SUPERSEDED,
    ),
    Topic(
        REFERENCE_BALANCES,
        "account",
        "Expected balances: the closing balance of each account according to a bank's own file.",
        ("once load",),
        ("once verify",),
        compacted=True,
    ),
    Topic(
        REFERENCE_SUBSCRIPTIONS,
        "account, * for every client account",
        "Notification subscriptions: receipts, notices, decline notices and events, with their destinations.",
        ("once subscriptions",),
        ("ledger", "once verify", "once reconcile"),
        compacted=True,
        config=_KEEPS_SUPERSEDED,
    ),
    Topic(
        REFERENCE_ENDPOINTS,
        "endpoint: https://host:443/path, file:name, smtp",
        "Endpoints of effects that have failed for a while, and those that are disabled.",
        ("outbox", "once endpoints"),
        ("outbox", "once endpoints"),
        compacted=True,
        config=_KEEPS_TRANSACTIONS,
    ),
    Topic(
        RECONCILIATION_RUNS,
        "cut_id",
        "The outcome of each nightly reconciliation: verdict, breaks by kind, digests of its manifest and report.",
        ("once reconcile",),
        ("monitor",),
        compacted=True,
    ),
    Topic(
        OPERATIONS_REPAIRS,
        "repair id",
        "Missing records that were written later: the operator, time, service and inputs of each repair.",
        ("once repair",),
        (),
    ),
    Topic(
        OPERATIONS_AUDIT,
        "client; empty for requests without a known key",
        "Clients and keys: who added, issued and revoked them, uses of keys, and refused requests.",
        ("gateway", "once clients"),
        ("once clients",),
    ),
    Topic(
        INSTALLATION,
        "the id; ownership",
        "The installation's id, a part of every effect id, and the offsets of payments.raw from which on a payment "
        "needs a client: of each, the first record of partition 0.",
        ("once up", "once clients enforce"),
        ("gateway", "ledger", "outbox", "once verify", "once reconcile", "once repair"),
        compacted=True,
    ),
)


def own_topic(name: str, *, changelog: bool = False) -> Topic:
    """Return a topic that is not in the catalogue: an output of a service of one's own, or its changelog."""
    purpose = "Changelog of a service of one's own." if changelog else "Output of a service of one's own."
    config = _KEEPS_TRANSACTIONS if changelog else {}
    return Topic(name, "chosen by the service", purpose, (), (), compacted=changelog, config=config)


BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}

__all__ = ["BY_NAME", "REPLICATION_FACTOR", "TOPICS", "Topic", "min_insync_replicas", "own_topic"]
