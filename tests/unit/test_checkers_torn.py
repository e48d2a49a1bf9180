"""Every possible torn transaction of each service: the verifier finds it and names its records."""

from collections.abc import Mapping

import pytest

from deploy.checkers.audit import INPUTS
from deploy.checkers.verdict import Kind
from services.ingest.domain import remember
from services.ingest.service import IDENTITY_PREFIX
from shared.events import catalogue
from shared.events.headers import REPAIR
from tests.planted import ALICE, BOB, Clean
from tests.planted_torn import TornWorld
from tests.tears import CHANGELOG, EVERY, LEGS, OFFSET, OTHER_LEGS, PARTS, Rule, Tear, rules
from tests.world import Trail, found

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


def remember_all(world: Clean, *trails: Trail) -> None:
    """Write the identities of accepted payments to ingest's changelog."""
    for number, trail in enumerate(trails):
        value = bytes(16) + remember(bytes(16), trail.raw.offset)
        world.append(catalogue.PAYMENTS_IDENTITIES, trail.raw.partition, value, IDENTITY_PREFIX + b"%d" % number)


def paid(world: Clean, number: int) -> list[Trail]:
    trails = [world.pay(f"paid-{n}", ALICE, BOB, 1) for n in range(number)]
    world.expect(BOB, world.balances[BOB]["CZK"])
    return trails


def forgotten(*trails: Trail) -> set[tuple[str, str]]:
    return {(Kind.TORN_CHANGELOG.value, str(trail.raw)) for trail in trails}


def test_an_accepted_payment_whose_identity_was_lost_is_found() -> None:
    """Only the changelog's part was lost, and the next record advanced the next offset."""
    world = Clean()
    trails = paid(world, 6)
    remember_all(world, trails[1], trails[3], trails[5])
    assert found(world.audit()) == forgotten(trails[2], trails[4])
    assert found(world.audit(identity_window=2)) == forgotten(trails[4])
    remember_all(world, trails[2], trails[4])
    assert world.audit().violations == []


def test_the_identity_of_a_repaired_payment_may_have_left_the_window() -> None:
    """It can be as old as the raw record."""
    world = Clean()
    trails = paid(world, 3)
    remember_all(world, trails[0], trails[2])
    assert found(world.audit()) == forgotten(trails[1])
    world.add_header(trails[1].accepted, REPAIR, "repair-1:0")
    assert world.audit().violations == []


def test_a_payment_that_was_accepted_again_is_remembered_once() -> None:
    world = Clean()
    trails = [*paid(world, 2), *paid(world, 2)]
    remember_all(world, trails[0], *trails[2:])
    assert world.audit().kinds == {Kind.ACCEPTED_TWICE: 2}
