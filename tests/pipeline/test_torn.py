"""Every way in which a transaction of each service can be torn: the reconciliation finds it and names its records."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from shared.events import catalogue
from shared.events.headers import Coordinates
from spark.checks import effects, intake
from spark.night import Kind
from tests.partitions import PARTITIONS
from tests.pipeline.landed import night_of, run
from tests.pipeline.nights import ends, kept, manifest, night, rows_of
from tests.pipeline.sums import Sums
from tests.planted_torn import TornWorld, Transaction
from tests.tears import CHANGELOG, EVERY, LEGS, OFFSET, OTHER_LEGS, PARTS, Rule, Tear, rules
from tests.tiers import full

Where = tuple[str, str | None, int | None, int | None]
"""A break: its kind and coordinates; a sum has no coordinates."""

RULES: Mapping[str, list[Rule]] = {
    "ingest": [
        one
        for output, source, at in (
            (catalogue.PAYMENTS_ACCEPTED, "paid", "accepted"),
            (catalogue.PAYMENTS_DEDUPLICATED, "repeated", "repeat"),
            (catalogue.PAYMENTS_DEAD_LETTER, "refused", "dead letter"),
        )
        for one in (*rules(OFFSET, output, Kind.MISSING, source), *rules(output, OFFSET, Kind.TORN, at))
    ],
    "transform": [
        *rules(OFFSET, catalogue.LEDGER_TRANSFERS, Kind.MISSING, "paid"),
        *rules(catalogue.LEDGER_TRANSFERS, OFFSET, Kind.TORN, "transfer"),
    ],
    "ledger": [
        *rules(OFFSET, catalogue.LEDGER_POSTINGS, Kind.MISSING, "first", "second", "third"),
        *rules(catalogue.LEDGER_POSTINGS, OFFSET, Kind.TORN, "first debit", "second debit", "decline"),
        *rules(catalogue.LEDGER_POSTINGS, LEGS, Kind.TORN, "first debit"),
        *rules(catalogue.LEDGER_POSTINGS, OTHER_LEGS, Kind.TORN, "second debit"),
        *rules(LEGS, catalogue.LEDGER_POSTINGS, Kind.TORN, "first leg"),
        *rules(OTHER_LEGS, catalogue.LEDGER_POSTINGS, Kind.TORN, "second leg"),
        *rules(catalogue.EFFECTS_REQUESTS, catalogue.LEDGER_POSTINGS, Kind.TORN, "request"),
        # Accounts without a posting, or without a state
        *rules(CHANGELOG, catalogue.LEDGER_POSTINGS, Kind.ORPHAN, "first state", "second state"),
        *rules(catalogue.LEDGER_POSTINGS, CHANGELOG, Kind.MISSING, "first debit", "second debit"),
    ],
    "outbox": [
        *rules(OFFSET, catalogue.EFFECTS_RESULTS, Kind.EFFECT, "sent", "failed"),
        *rules(catalogue.EFFECTS_RESULTS, OFFSET, Kind.TORN, "sent result", "failed result"),
        *rules(catalogue.EFFECTS_RESULTS, catalogue.EFFECTS_DEAD_LETTER, Kind.EFFECT, "failed result"),
        *(
            Rule(frozenset([catalogue.EFFECTS_DEAD_LETTER]), frozenset([OFFSET, catalogue.EFFECTS_RESULTS]), kind, at)
            for kind, at in ((Kind.TORN, "letter"),)
        ),
        *rules(OFFSET, CHANGELOG, Kind.EFFECT, "waits"),
        *rules(CHANGELOG, OFFSET, Kind.TORN, "waiting"),
        *rules(CHANGELOG, catalogue.EFFECTS_RESULTS, Kind.EFFECT, "waited"),
        *rules(catalogue.EFFECTS_RESULTS, CHANGELOG, Kind.TORN, "waiting before"),
    ],
}
"""Findings that are due where one part was committed and another aborted."""

UNOBSERVABLE: Mapping[Tear, str] = {
    **{
        Tear(service, frozenset(committed)): reason
        for service in ("ingest", "transform")
        for committed, reason in (
            ((CHANGELOG,), "this changelog is not landed, and the inputs look as if they still waited"),
            (set(PARTS[service]) - {CHANGELOG}, "this changelog is not landed, and all else is there"),
        )
    },
    Tear("ledger", frozenset(PARTS["ledger"]) - {catalogue.EFFECTS_REQUESTS}): (
        "who was subscribed when the transaction was made is in no record, so a request may rightly not be there"
    ),
}
"""Torn transactions that leave no visible trace, and why."""


def due(transactions: Iterable[Transaction]) -> Counter[Where]:
    """The breaks of records that transactions must lead to."""
    return Counter(
        (one.kind, *transaction.records[one.at])
        for transaction in transactions
        for one in RULES[transaction.service]
        if one.applies(transaction.tear)
    )


def found(breaks: Iterable[Row]) -> Counter[Where]:
    """Breaks by kind and coordinates."""
    return Counter((row["kind"], row["topic"], row["partition"], row["offset"]) for row in breaks)


@pytest.mark.parametrize("tear", EVERY, ids=str)
def test_every_torn_transaction_is_due_to_be_found(tear: Tear) -> None:
    applied = [one for one in RULES[tear.service] if one.applies(tear)]
    assert bool(applied) == (tear.is_torn and tear not in UNOBSERVABLE)


@full
def test_every_torn_transaction_is_found_and_its_records_are_named(spark: SparkSession, tmp_path: Path) -> None:
    world = TornWorld()
    transactions = world.plant(EVERY, range(PARTITIONS))
    of_records, of_sums = due(transactions), Counter(one[:4] for one in Sums(world).breaks().elements())
    breaks, *_ = run(night_of(spark, world, tmp_path))
    # Its debtors have no cover: decisions are judged elsewhere
    named = found(row for row in breaks if row["kind"] != Kind.DECISION)
    assert of_records - named == Counter()
    assert named - of_records - of_sums == Counter()


@full
def test_findings_that_a_cut_under_way_leaves_open_are_made_at_rest(spark: SparkSession) -> None:
    world = TornWorld()
    chosen = [tear for tear in EVERY if tear.service in {"transform", "outbox"}]
    transactions = world.plant(chosen, range(PARTITIONS))
    # The end of the waiting effect could still be above the first cut
    highs = {
        (topic, number): end + 2 for (topic, number), end in ends(world).items() if topic == catalogue.EFFECTS_WAITING
    }
    first = manifest(world, settled=False, highs=highs)
    second = manifest(world, previous=first)
    third = manifest(world, previous=second)
    breaks: list[list[Row]] = []
    carried: dict[str, DataFrame] = {}
    for cut in (first, second, third):
        carry: dict[str, DataFrame] = {}
        breaks.append([])
        for check in (intake.check_transform, effects.check):
            checked = check(night(spark, world, cut, carried))
            breaks[-1] += rows_of(checked)
            carry |= kept(checked.carry)
        carried = carry
    torn = {kind for kind, *_ in found(breaks[0])}
    assert Kind.TORN not in torn
    assert found(breaks[0]) - due(transactions) == Counter()
    assert found(breaks[1]) == due(transactions)
    assert found(breaks[2]) == due(transactions), "each is a break as long as it is there"


def test_records_of_a_transaction_are_at_their_named_coordinates() -> None:
    world = TornWorld()
    for transaction in world.plant(EVERY, range(PARTITIONS)):
        for at in {*transaction.records.values(), *transaction.written}:
            assert at in world.removed or world.at(Coordinates(*at)).offset == at.offset
