"""The result of an audit, as a value that goes into JSON as it is. Pure.

Findings are violations by kind, each with the invariant of ARCHITECTURE.md that it breaks.
"""

from collections import Counter
from enum import StrEnum

import msgspec

INVARIANTS: dict[str, str] = {
    "I1": "conservation: for each currency, all balances sum to 0",
    "I2": "balanced: each posting sums to 0 for each currency and stays on its partition",
    "I3": "once: each accepted payment has exactly one debit posting or one decline",
    "I4": "completed: each debit leg has exactly one credit leg",
    "I5": "in transit: the in-transit accounts sum to 0",
    "I6": "nothing lost: each raw record is in exactly one of the three outcome topics",
    "I7": "atomic: of a transaction's records and offsets, all are visible or none",
    "I8": "committed only: each record's source is a committed record",
    "I9": "replay: folding the postings gives the balances in the changelog",
    "I11": "effects: each committed effect request has exactly one result; none without a request; a doubt is reported",
}

BANK = "bank"  # not an invariant: the balances by the bank's own figures


class Kind(StrEnum):
    DRIFT = "drift"
    UNBALANCED = "unbalanced"
    FOREIGN_ACCOUNT = "foreign_account"
    LOST = "lost"
    DUPLICATE_TRANSFER = "duplicate_transfer"
    DUPLICATE_DEBIT = "duplicate_debit"
    DUPLICATE_DECLINE = "duplicate_decline"
    DUPLICATE_ACCOUNT_EVENT = "duplicate_account_event"
    ACCEPTED_TWICE = "accepted_twice"
    ORPHAN_POSTING = "orphan_posting"
    ALTERED_TRANSFER = "altered_transfer"
    ALTERED_POSTING = "altered_posting"
    WRONG_REVERSAL = "wrong_reversal"
    WRONG_PRICE = "wrong_price"
    WRONG_REFERENCE = "wrong_reference"
    WRONG_DEBIT = "wrong_debit"
    WRONG_DECLINE = "wrong_decline"
    WRONG_RECEIVER = "wrong_receiver"
    NEEDLESS_ACCOUNT_EVENT = "needless_account_event"
    WRONG_ACCOUNT_EVENT = "wrong_account_event"
    UNAUTHORISED = "unauthorised"
    WRONG_PARTITION = "wrong_partition"
    CREDIT_MISSING = "credit_missing"
    DUPLICATE_CREDIT = "duplicate_credit"
    DUPLICATE_CREDIT_LEG = "duplicate_credit_leg"
    ORPHAN_CREDIT = "orphan_credit"
    ORPHAN_CREDIT_LEG = "orphan_credit_leg"
    ALTERED_CREDIT_LEG = "altered_credit_leg"
    IN_TRANSIT = "in_transit"
    NO_OUTCOME = "no_outcome"
    TWO_OUTCOMES = "two_outcomes"
    WRONG_FIRST = "wrong_first"
    ALTERED_OUTCOME = "altered_outcome"
    WRONG_ACCEPTANCE = "wrong_acceptance"
    WRONG_REFUSAL = "wrong_refusal"
    RAW_MISSING = "raw_missing"
    TORN_CREDIT_LEG = "torn_credit_leg"
    TORN_CHANGELOG = "torn_changelog"
    SKIPPED = "skipped"
    AHEAD = "ahead"
    SOURCE_MISSING = "source_missing"
    ORIGIN_MISMATCH = "origin_mismatch"
    UNREADABLE = "unreadable"
    BALANCE_DIFFERS = "balance_differs"
    TERMS_DIFFER = "terms_differ"
    OWNER_DIFFERS = "owner_differs"
    BANK_DIFFERS = "bank_differs"
    EFFECT_UNFOUNDED = "effect_unfounded"
    EFFECT_ALTERED = "effect_altered"
    EFFECT_REQUESTED_TWICE = "effect_requested_twice"
    EFFECT_ELSEWHERE = "effect_elsewhere"
    EFFECT_MISSING = "effect_missing"
    EFFECT_WAITING = "effect_waiting"
    EFFECT_ORPHAN = "effect_orphan"
    EFFECT_CONTRADICTED = "effect_contradicted"
    EFFECT_FAILED_SILENTLY = "effect_failed_silently"
    EFFECT_PHANTOM = "effect_phantom"
    EFFECT_DUPLICATED = "effect_duplicated"
    EFFECT_NOT_AT_SINK = "effect_not_at_sink"
    EFFECT_DENIED = "effect_denied"
    EFFECT_NOT_AS_SUBSCRIBED = "effect_not_as_subscribed"


_BY_INVARIANT: dict[str, tuple[Kind, ...]] = {
    "I1": (Kind.DRIFT,),
    "I2": (Kind.UNBALANCED, Kind.FOREIGN_ACCOUNT),
    "I3": (
        Kind.LOST,
        Kind.DUPLICATE_TRANSFER,
        Kind.DUPLICATE_DEBIT,
        Kind.DUPLICATE_DECLINE,
        Kind.DUPLICATE_ACCOUNT_EVENT,
        Kind.ACCEPTED_TWICE,
        Kind.ORPHAN_POSTING,
        Kind.ALTERED_TRANSFER,
        Kind.ALTERED_POSTING,
        Kind.WRONG_REVERSAL,
        Kind.WRONG_PARTITION,
        Kind.WRONG_PRICE,
        Kind.WRONG_REFERENCE,
        Kind.WRONG_DEBIT,
        Kind.WRONG_DECLINE,
        Kind.WRONG_RECEIVER,
        Kind.NEEDLESS_ACCOUNT_EVENT,
        Kind.WRONG_ACCOUNT_EVENT,
        Kind.UNAUTHORISED,
    ),
    "I4": (
        Kind.CREDIT_MISSING,
        Kind.DUPLICATE_CREDIT,
        Kind.DUPLICATE_CREDIT_LEG,
        Kind.ORPHAN_CREDIT,
        Kind.ORPHAN_CREDIT_LEG,
        Kind.ALTERED_CREDIT_LEG,
    ),
    "I5": (Kind.IN_TRANSIT,),
    "I6": (
        Kind.NO_OUTCOME,
        Kind.TWO_OUTCOMES,
        Kind.WRONG_FIRST,
        Kind.ALTERED_OUTCOME,
        Kind.WRONG_ACCEPTANCE,
        Kind.WRONG_REFUSAL,
        Kind.RAW_MISSING,
    ),
    "I7": (Kind.TORN_CREDIT_LEG, Kind.TORN_CHANGELOG, Kind.SKIPPED, Kind.AHEAD),
    "I8": (Kind.SOURCE_MISSING, Kind.ORIGIN_MISMATCH, Kind.UNREADABLE),
    "I9": (Kind.BALANCE_DIFFERS, Kind.TERMS_DIFFER, Kind.OWNER_DIFFERS),
    "I11": (
        Kind.EFFECT_UNFOUNDED,
        Kind.EFFECT_ALTERED,
        Kind.EFFECT_REQUESTED_TWICE,
        Kind.EFFECT_ELSEWHERE,
        Kind.EFFECT_MISSING,
        Kind.EFFECT_WAITING,
        Kind.EFFECT_ORPHAN,
        Kind.EFFECT_CONTRADICTED,
        Kind.EFFECT_FAILED_SILENTLY,
        Kind.EFFECT_PHANTOM,
        Kind.EFFECT_DUPLICATED,
        Kind.EFFECT_NOT_AT_SINK,
        Kind.EFFECT_DENIED,
        Kind.EFFECT_NOT_AS_SUBSCRIBED,
    ),
    BANK: (Kind.BANK_DIFFERS,),
}
INVARIANT_OF: dict[Kind, str] = {kind: name for name, kinds in _BY_INVARIANT.items() for kind in kinds}


class Violation(msgspec.Struct, frozen=True):
    """One violation."""

    invariant: str
    kind: str
    where: str  # coordinates of the record, `topic:partition:offset`; the topic alone where a sum is wrong
    detail: str  # what was found and what was expected, for people


class Findings:
    """Counts violations by kind and keeps the first `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: Counter[Kind] = Counter()
        self.violations: list[Violation] = []

    def add(self, kind: Kind, where: str, detail: str) -> None:
        self.counts[kind] += 1
        if len(self.violations) < self._limit:
            self.violations.append(Violation(INVARIANT_OF[kind], kind.value, where, detail))

    def of_invariant(self, name: str) -> int:
        """Return the number of violations of one invariant."""
        return sum(self.counts[kind] for kind in _BY_INVARIANT[name])

    def total(self) -> int:
        return self.counts.total()


PASS = "pass"  # noqa: S105 - a verdict, not a password
FAIL = "fail"
NO_DATA = "no_data"

FIGURES = (
    "records_in",
    "accepted",
    "deduplicated",
    "dead_lettered",
    "postings",
    "declines",
    "lost",
    "duplicated",
    "torn",
    "drift_minor",
    "accounts",
    "accounts_exact",
    "accounts_within_rounding",
    "accounts_off",
    "effects_requested",
    "effects_delivered",
    "effects_duplicated",
    "effects_in_doubt",
    "effects_failed",
    "decisions_open",
)
"""The verdict's fields that are shown to a person, in this order."""


class InvariantResult(msgspec.Struct, frozen=True):
    """One invariant's result."""

    result: str  # pass, fail or no_data; nothing checked is not a pass
    checked: int  # how many records, payments or sums were looked at
    violations: int


class Verdict(msgspec.Struct, frozen=True):
    """Result of an audit: pass, fail or no_data, and counts of records."""

    verdict: str
    records_in: int
    accepted: int
    deduplicated: int
    dead_lettered: int
    postings: int  # leg postings, debit and credit
    declines: int  # of payments, reversals and openings
    lost: int  # accepted without debit posting, decline or account event
    duplicated: int  # legs beyond one debit (or decline) and one credit of a payment
    torn: int  # postings and declines whose credit leg or changelog write of the same transaction is absent
    drift_minor: int  # sum over currencies of the absolute sum of all balances
    accounts: int  # client accounts with an expected balance
    accounts_exact: int  # of those, like the next two, by how the ledger's balance compares
    accounts_within_rounding: int
    accounts_off: int
    effects_requested: int  # distinct effects that committed records of effects.requests ask for
    effects_delivered: int  # results that say sent; where a sink's own log was given, distinct ids in it
    effects_duplicated: int  # ids in a sink's log beyond the first of each, and calls that results call resends
    effects_in_doubt: int  # by the state of the last result, as are those failed
    effects_failed: int
    invariants: dict[str, InvariantResult]  # by name, as in INVARIANTS
    kinds: dict[str, int]  # number of violations of each kind
    violations_total: int
    violations: list[Violation]  # the first of them
    end_offsets: dict[str, list[int]]  # how far each topic was read, by partition
    balances_digest: str  # as `Books.digest` computes it
    decisions_open: int = 0  # not judged: the reference records that decided them may have been compacted away
    at_rest: bool = True  # whether the pipeline had drained and nothing moved while the topics were read
