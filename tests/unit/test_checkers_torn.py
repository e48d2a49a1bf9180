"""Every possible torn transaction of each service: the verifier finds it and names its records."""

from collections.abc import Mapping

import pytest

from deploy.checkers.audit import INPUTS
from deploy.checkers.verdict import Kind
from shared.events import catalogue
from tests.planted_torn import TornWorld
from tests.tears import CHANGELOG, EVERY, LEGS, OFFSET, OTHER_LEGS, PARTS, Rule, Tear, rules
from tests.world import found

PARTITION = 2

RULES: Mapping[str, list[Rule]] = {
    "ingest": [
        one
        for output, at in (
            (catalogue.PAYMENTS_ACCEPTED, "paid"),
            (catalogue.PAYMENTS_DEDUPLICATED, "repeated"),
            (catalogue.PAYMENTS_DEAD_LETTER, "refused"),
        )
        for one in (*rules(OFFSET, output, Kind.SKIPPED, at), *rules(output, OFFSET, Kind.AHEAD, at))
    ]
    + [
        *rules(OFFSET, CHANGELOG, Kind.TORN_CHANGELOG, "paid", "repeated", "refused"),
        *rules(CHANGELOG, OFFSET, Kind.TORN_CHANGELOG, "paid", "repeated", "refused"),
    ],
    "transform": [
        *rules(OFFSET, CHANGELOG, Kind.TORN_CHANGELOG, "paid"),
        *rules(CHANGELOG, OFFSET, Kind.TORN_CHANGELOG, "paid"),
        *rules(OFFSET, catalogue.LEDGER_TRANSFERS, Kind.SKIPPED, "paid"),
        *rules(catalogue.LEDGER_TRANSFERS, OFFSET, Kind.AHEAD, "paid"),
    ],
    "ledger": [
        *rules(OFFSET, catalogue.LEDGER_POSTINGS, Kind.SKIPPED, "first", "second", "third"),
        *rules(catalogue.LEDGER_POSTINGS, OFFSET, Kind.AHEAD, "first", "second", "third"),
        *rules(catalogue.LEDGER_POSTINGS, LEGS, Kind.TORN_CREDIT_LEG, "first debit"),
        *rules(catalogue.LEDGER_POSTINGS, OTHER_LEGS, Kind.TORN_CREDIT_LEG, "second debit"),
        *rules(catalogue.LEDGER_POSTINGS, CHANGELOG, Kind.TORN_CHANGELOG, "first debit", "second debit", "decline"),
        *rules(LEGS, catalogue.LEDGER_POSTINGS, Kind.ORPHAN_CREDIT_LEG, "first leg"),
        *rules(OTHER_LEGS, catalogue.LEDGER_POSTINGS, Kind.ORPHAN_CREDIT_LEG, "second leg"),
        *rules(CHANGELOG, catalogue.LEDGER_POSTINGS, Kind.BALANCE_DIFFERS, "first state", "second state"),
        *(
            Rule(frozenset([there]), frozenset([gone, catalogue.LEDGER_POSTINGS]), Kind.TORN_CHANGELOG, name)
            for there, gone in ((CHANGELOG, OFFSET), (OFFSET, CHANGELOG))
            for name in ("first", "second", "third")
        ),
        *rules(catalogue.EFFECTS_REQUESTS, catalogue.LEDGER_POSTINGS, Kind.EFFECT_UNFOUNDED, "request"),
        *rules(catalogue.LEDGER_POSTINGS, catalogue.EFFECTS_REQUESTS, Kind.EFFECT_NOT_AS_SUBSCRIBED, "first"),
    ],
    "outbox": [
        *rules(OFFSET, catalogue.EFFECTS_RESULTS, Kind.EFFECT_MISSING, "sent", "failed"),
        *rules(OFFSET, catalogue.EFFECTS_RESULTS, Kind.SKIPPED, "sent"),
        *rules(catalogue.EFFECTS_RESULTS, OFFSET, Kind.AHEAD, "sent", "failed"),
        *rules(catalogue.EFFECTS_RESULTS, catalogue.EFFECTS_DEAD_LETTER, Kind.EFFECT_FAILED_SILENTLY, "failed result"),
        *rules(catalogue.EFFECTS_DEAD_LETTER, OFFSET, Kind.AHEAD, "failed"),
        *rules(catalogue.EFFECTS_DEAD_LETTER, catalogue.EFFECTS_RESULTS, Kind.EFFECT_MISSING, "failed"),
        *rules(OFFSET, CHANGELOG, Kind.SKIPPED, "waits"),
        *rules(CHANGELOG, OFFSET, Kind.AHEAD, "waits"),
        *rules(CHANGELOG, catalogue.EFFECTS_RESULTS, Kind.SKIPPED, "waited"),
        *rules(catalogue.EFFECTS_RESULTS, CHANGELOG, Kind.EFFECT_WAITING, "waited"),
    ],
}
"""Findings due where one part was committed and another one aborted."""

PENDING = {
    Kind.NO_OUTCOME,
    Kind.LOST,
    Kind.CREDIT_MISSING,
    Kind.IN_TRANSIT,
    Kind.EFFECT_MISSING,
    Kind.EFFECT_WAITING,
    Kind.WRONG_DEBIT,
}
"""Kinds found for inputs that no service has processed yet, and for debtors without any state, which are no tears."""


@pytest.mark.parametrize("tear", EVERY, ids=str)
def test_a_torn_transaction_is_found_and_its_records_are_named(tear: Tear) -> None:
    world = TornWorld()
    [transaction] = world.plant([tear], [PARTITION])
    due = {(one.kind, str(transaction.records[one.at])) for one in RULES[tear.service] if one.applies(tear)}
    assert bool(due) == tear.is_torn
    verdict = world.audit()
    assert due <= found(verdict)
    if not due:
        assert set(verdict.kinds) <= PENDING
    named = {str(at) for at in transaction.records.values()} | {str(at) for at in transaction.written}
    others = {one for one in found(verdict) - due if one[0] not in PENDING and one[1] not in named}
    # Without its first state, an account has no record that could be named
    assert {kind for kind, _ in others} <= {Kind.BALANCE_DIFFERS}


@pytest.mark.parametrize("service", PARTS)
def test_every_combination_of_parts_is_planted(service: str) -> None:
    assert sum(tear.service == service for tear in EVERY) == 2 ** len(PARTS[service])


def test_a_group_that_passed_markers_or_was_reset_and_drained_again_is_not_torn() -> None:
    world = TornWorld()
    world.plant([Tear("outbox", frozenset(PARTS["outbox"]))], [PARTITION])
    before = world.audit().kinds
    for group, topic in INPUTS.items():
        for partition, committed in world.committed[group].items():
            last = world.logs[topic, partition][-1].offset
            assert committed == last + 1  # the marker's offset is not passed
            world.committed[group][partition] = last + 2
    assert world.audit().kinds == before
    assert set(before) <= PENDING
