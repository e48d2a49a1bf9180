"""The result of an audit, as a value that goes into JSON as it is. Pure."""

import msgspec

from deploy.checkers.findings import Violation

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
)
"""The verdict's fields that are shown to a person, in this order."""


class InvariantResult(msgspec.Struct, frozen=True):
    """One invariant's result.

    Attributes:
        result: pass, fail or no_data; nothing checked is not a pass.
        checked: how many records, payments or sums were looked at.
        violations: how many were wrong.
    """

    result: str
    checked: int
    violations: int


class Verdict(msgspec.Struct, frozen=True):
    """Result of an audit.

    Attributes:
        verdict: pass, fail or no_data.
        records_in: records of payments.raw.
        accepted, deduplicated, dead_lettered: records of the three topics.
        postings: leg postings, debit and credit.
        declines: declined payments and reversals.
        lost: accepted without debit posting or decline.
        duplicated: legs beyond one debit (or decline) and one credit of a payment.
        torn: postings and declines whose credit leg or changelog write of the same transaction is absent.
        drift_minor: minor units, sum over currencies of the absolute sum of all balances.
        accounts: client accounts with an expected balance.
        accounts_exact, accounts_within_rounding, accounts_off: of those, by how the ledger's balance compares.
        effects_requested: distinct effects that committed records of effects.requests ask for.
        effects_delivered: of those, results that say sent; where a sink's own log was given, distinct ids in it.
        effects_duplicated: ids in a sink's log beyond the first of each, and calls that results call resends.
        effects_in_doubt, effects_failed: effects by the state of their last result.
        invariants: by name, as in INVARIANTS.
        kinds: how many violations of each kind were found.
        violations: the first of them, with their coordinates.
        end_offsets: how far each topic was read, by partition.
        balances_digest: SHA-256, hex, of all balances that are not 0, as `Books.digest` computes it.
        at_rest: whether the pipeline had drained and nothing moved while the topics were read.
    """

    verdict: str
    records_in: int
    accepted: int
    deduplicated: int
    dead_lettered: int
    postings: int
    declines: int
    lost: int
    duplicated: int
    torn: int
    drift_minor: int
    accounts: int
    accounts_exact: int
    accounts_within_rounding: int
    accounts_off: int
    effects_requested: int
    effects_delivered: int
    effects_duplicated: int
    effects_in_doubt: int
    effects_failed: int
    invariants: dict[str, InvariantResult]
    kinds: dict[str, int]
    violations_total: int
    violations: list[Violation]
    end_offsets: dict[str, list[int]]
    balances_digest: str
    at_rest: bool = True
