"""The audit: feed it every topic's committed records, get a verdict. Pure.

Topics come one after the other in the order of TOPICS, partitions within a topic in any order, records of a partition
by offset. The pipeline must be idle: records in flight count as missing.
"""

from collections.abc import Iterable, Mapping

from deploy.checkers.books import Books
from deploy.checkers.cover import REVERSAL_WINDOW, Cover
from deploy.checkers.effects import Effects
from deploy.checkers.intake import Intake
from deploy.checkers.ownership import Submitters
from deploy.checkers.postings import Postings
from deploy.checkers.pricing import Pricing
from deploy.checkers.reference import Versions
from deploy.checkers.subscribed import Subscribed
from deploy.checkers.transfers import Transfers
from deploy.checkers.verdict import FAIL, INVARIANTS, NO_DATA, PASS, Findings, InvariantResult, Kind, Verdict
from shared.eos.records import Record
from shared.events.catalogue import (
    EFFECTS_DEAD_LETTER,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    INSTALLATION,
    LEDGER_ACCOUNTS,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_IDENTITIES,
    PAYMENTS_RAW,
    REFERENCE_BALANCES,
    REFERENCE_FEES,
    REFERENCE_RATES,
    REFERENCE_SUBSCRIPTIONS,
    TRANSFORM_PROGRESS,
)
from shared.events.effects import decode_subscriptions
from shared.events.reference import decode_fee, decode_rate

TOPICS = (
    INSTALLATION,
    REFERENCE_FEES,
    REFERENCE_RATES,
    REFERENCE_SUBSCRIPTIONS,
    PAYMENTS_RAW,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_IDENTITIES,
    LEDGER_TRANSFERS,
    TRANSFORM_PROGRESS,
    LEDGER_BALANCES,
    LEDGER_ACCOUNTS,
    REFERENCE_BALANCES,
    LEDGER_POSTINGS,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    EFFECTS_DEAD_LETTER,
)
"""Topics in the order in which they are fed: each is compared with those before it."""

INPUTS = {
    "ingest": PAYMENTS_RAW,
    "transform": PAYMENTS_ACCEPTED,
    "ledger": LEDGER_TRANSFERS,
    "outbox": EFFECTS_REQUESTS,
}
"""Consumer group and the topic that it commits offsets of."""

VIOLATIONS_KEPT = 100
IDENTITY_WINDOW = 100_000


class Audit:
    """One audit.

    Args:
        end_offsets: how far each topic is read, by topic and partition.
        partitions: of each topic.
        identity_window: accepted identities that ingest remembers for each partition.
        reversal_window: booked payments that the ledger remembers for each partition.
        compacted_before_ms: fees, rates and subscriptions that were superseded before may no longer be in the log.
        file_sinks: whether the logs of all `file:` destinations are fed, by `feed_sink`.
        violations_kept: how many violations the verdict names; all are counted.
    """

    def __init__(
        self,
        end_offsets: Mapping[tuple[str, int], int],
        *,
        partitions: int,
        identity_window: int = IDENTITY_WINDOW,
        reversal_window: int = REVERSAL_WINDOW,
        compacted_before_ms: int = 0,
        file_sinks: bool = False,
        violations_kept: int = VIOLATIONS_KEPT,
    ) -> None:
        self._findings = Findings(violations_kept)
        submitters = Submitters(self._findings)
        self._intake = Intake(self._findings, submitters, identity_window, partitions)
        self._end_offsets = {
            topic: {partition: end_offsets.get((topic, partition), 0) for partition in range(partitions)}
            for topic in TOPICS
        }
        fees = Versions(self._findings, REFERENCE_FEES, decode_fee, compacted_before_ms)
        rates = Versions(self._findings, REFERENCE_RATES, decode_rate, compacted_before_ms)
        subscriptions = Versions(self._findings, REFERENCE_SUBSCRIPTIONS, decode_subscriptions, compacted_before_ms)
        self._pricing = Pricing(self._findings, fees, rates)
        self._transfers = Transfers(
            self._findings, self._intake, submitters, self._pricing, self._end_offsets[LEDGER_TRANSFERS]
        )
        self._books = Books(self._findings, partitions)
        self._cover = Cover(self._findings, self._transfers, self._books, reversal_window)
        self._subscribed = Subscribed(self._findings, subscriptions)
        self._postings = Postings(
            self._findings, self._intake, self._transfers, self._books, self._cover, self._subscribed
        )
        self._effects = Effects(
            self._findings,
            self._transfers,
            self._postings,
            self._subscribed,
            submitters,
            file_sinks=file_sinks,
        )
        self._feeds = dict(
            zip(
                TOPICS,
                (
                    submitters.feed,
                    fees.feed,
                    rates.feed,
                    subscriptions.feed,
                    self._intake.feed_raw,
                    self._intake.feed_accepted,
                    self._intake.feed_deduplicated,
                    self._intake.feed_dead_letter,
                    self._intake.feed_identities,
                    self._transfers.feed,
                    self._intake.transform_changelog.feed,
                    self._books.feed_changelog,
                    self._books.feed_accounts,
                    self._books.feed_expected,
                    self._postings.feed,
                    self._effects.feed_requests,
                    self._effects.feed_results,
                    self._effects.feed_waiting,
                    self._effects.feed_dead_letter,
                ),
                strict=True,
            )
        )
        self._stage = 0

    def feed(self, topic: str, partition: int, records: list[Record]) -> None:
        """Take records of one partition, in their order; raise ValueError for a topic out of the order of TOPICS."""
        stage = TOPICS.index(topic)
        if stage < self._stage:
            raise ValueError(f"{topic} comes before {TOPICS[self._stage]}")
        self._stage = stage
        self._feeds[topic](partition, records)

    def feed_sink(self, destination: str, effect_ids: Iterable[str]) -> None:
        """Take a sink's own log, at any time: the effect_ids of its deliveries, in their order.

        The destination is as the requests name it, `file:receipts`.
        """
        self._effects.feed_sink(destination, effect_ids)

    def raw_gaps(self) -> dict[int, list[range]]:
        """Return the offsets of payments.raw without a record, by partition, when all of it was fed."""
        self._intake.gaps.end(self._end_offsets[PAYMENTS_RAW])
        return self._intake.gaps.found()

    def account_for(self, partition: int, taken: range) -> None:
        """Take offsets in `raw_gaps` that a marker or an aborted record takes: nothing is missing there."""
        self._intake.gaps.account_for(partition, taken)

    def finish(
        self,
        committed: Mapping[str, Mapping[int, int]],
        beginnings: Mapping[tuple[str, int], int] | None = None,
    ) -> Verdict:
        """Run the final checks and return the verdict. Call it once.

        Args:
            committed: offsets on each group's topic in INPUTS, by group and partition.
            beginnings: the first offset that is still there, by topic and partition; 0 where none is given. Only
                effects.requests may begin later. Read them after the topics: what ended before must show.
        """
        first = {of: offset for (topic, of), offset in (beginnings or {}).items() if topic == EFFECTS_REQUESTS}
        self.raw_gaps()
        self._intake.finish(committed.get("ingest", {}), committed.get("transform", {}))
        self._postings.finish(committed.get("ledger", {}))
        self._transfers.finish()
        self._books.finish()
        self._cover.finish()
        self._subscribed.finish(first)
        self._effects.finish(committed.get("outbox", {}), first)
        return self._verdict()

    def _verdict(self) -> Verdict:
        counts = self._findings.counts
        intake, postings, books, effects = self._intake, self._postings, self._books, self._effects.counts
        return Verdict(
            verdict=self._result(intake.records_in, self._findings.total()),
            records_in=intake.records_in,
            accepted=intake.accepted,
            deduplicated=intake.deduplicated,
            dead_lettered=intake.dead_lettered,
            postings=postings.debits + postings.credits,
            declines=postings.declines,
            lost=counts[Kind.LOST],
            duplicated=sum(
                counts[kind] for kind in (Kind.DUPLICATE_DEBIT, Kind.DUPLICATE_DECLINE, Kind.DUPLICATE_CREDIT)
            ),
            torn=postings.torn,
            drift_minor=books.drift_minor,
            accounts=books.accounts_expected,
            accounts_exact=books.exact,
            accounts_within_rounding=books.within_rounding,
            accounts_off=books.off,
            effects_requested=effects.requested,
            effects_delivered=effects.delivered,
            effects_duplicated=effects.duplicated,
            effects_in_doubt=effects.in_doubt,
            effects_failed=effects.failed,
            invariants=self._invariants(),
            kinds={kind.value: count for kind, count in sorted(counts.items()) if count},
            violations_total=self._findings.total(),
            violations=self._findings.violations,
            end_offsets={topic: list(ends.values()) for topic, ends in self._end_offsets.items()},
            balances_digest=books.digest,
            decisions_open=self._pricing.open + self._cover.open + self._subscribed.open,
        )

    def _invariants(self) -> dict[str, InvariantResult]:
        legs = self._postings.debits + self._postings.credits
        outcomes = self._intake.accepted + self._intake.deduplicated + self._intake.dead_lettered
        checked = {
            "I1": self._books.currencies,
            "I2": legs,
            "I3": self._intake.accepted,
            "I4": self._postings.debits,
            "I5": self._books.currencies,
            "I6": self._intake.records_in,
            "I7": self._intake.records_in,
            "I8": outcomes + self._transfers.records + self._postings.records,
            "I9": self._books.accounts,
            "I11": self._effects.counts.requested,
        }
        return {
            name: InvariantResult(self._result(checked[name], violations), checked[name], violations)
            for name in INVARIANTS
            for violations in [self._findings.of_invariant(name)]
        }

    @staticmethod
    def _result(checked: int, violations: int) -> str:
        if violations:
            return FAIL
        return PASS if checked else NO_DATA
