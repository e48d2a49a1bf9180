"""The audit finds each kind of planted error, by kind and coordinates."""

from collections.abc import Callable

import pytest

from deploy.checkers.verdict import BANK, INVARIANT_OF, Kind
from shared.events import catalogue
from tests import planted, wrong_decisions
from tests import planted_fields as fields
from tests import planted_links as links
from tests.planted import ALICE, AWAY, ELSEWHERE, HOME, Clean
from tests.unit.test_checkers_decisions import PLANTED as DECISIONS
from tests.unit.test_checkers_owners import PLANTED as OWNERS
from tests.world import end, found, last_state

PLANTED: list[tuple[Callable[[Clean], None], Kind, Callable[[Clean], object]]] = [
    (planted.lost, Kind.LOST, lambda w: w.last.raw),
    (planted.debit_missing_changes_sums, Kind.ORPHAN_CREDIT, lambda w: w.last.raw),
    (planted.debit_missing_changes_sums, Kind.ORPHAN_CREDIT_LEG, lambda w: w.last.leg),
    (planted.debit_missing_changes_sums, Kind.IN_TRANSIT, lambda _: catalogue.LEDGER_POSTINGS),
    (planted.two_debits, Kind.DUPLICATE_DEBIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (planted.two_credits, Kind.DUPLICATE_CREDIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (planted.two_declines, Kind.DUPLICATE_DECLINE, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (planted.debit_after_decline, Kind.DUPLICATE_DEBIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (planted.altered_amount, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (planted.altered_amount, Kind.ALTERED_CREDIT_LEG, lambda w: w.paid.leg),
    (planted.altered_credit, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (planted.credited_to_another, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (planted.altered_leg, Kind.ALTERED_CREDIT_LEG, lambda w: w.paid.leg),
    (planted.altered_transfer, Kind.ALTERED_TRANSFER, lambda w: w.paid.transfer),
    (planted.altered_date, Kind.ALTERED_TRANSFER, lambda w: w.paid.transfer),
    (planted.altered_on_acceptance, Kind.ALTERED_OUTCOME, lambda w: w.paid.accepted),
    (planted.altered_day_of_receipt, Kind.ALTERED_OUTCOME, lambda w: w.paid.accepted),
    (planted.altered_dead_letter, Kind.ALTERED_OUTCOME, lambda w: w.refused[1]),
    (planted.decline_of_another, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (planted.orphan, Kind.ORPHAN_POSTING, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (planted.orphan_credit, Kind.ORPHAN_CREDIT, lambda w: w.declined.raw),
    (planted.leg_missing, Kind.TORN_CREDIT_LEG, lambda w: w.paid.debit),
    (planted.leg_twice, Kind.DUPLICATE_CREDIT_LEG, lambda w: end(w, catalogue.LEDGER_TRANSFERS, AWAY)),
    (planted.leg_without_debit, Kind.ORPHAN_CREDIT_LEG, lambda w: end(w, catalogue.LEDGER_TRANSFERS, AWAY)),
    (planted.changelog_behind, Kind.TORN_CHANGELOG, lambda w: w.last.debit),
    (planted.changelog_without_account, Kind.TORN_CHANGELOG, lambda w: w.paid.debit),
    (planted.changelog_without_account, Kind.BALANCE_DIFFERS, lambda _: f"{catalogue.LEDGER_BALANCES}:{HOME}"),
    (planted.unbalanced, Kind.UNBALANCED, lambda w: w.paid.credit),
    (planted.unbalanced, Kind.DRIFT, lambda _: catalogue.LEDGER_POSTINGS),
    (planted.unbalanced_by_currency, Kind.UNBALANCED, lambda w: w.paid.credit),
    (planted.foreign_account, Kind.FOREIGN_ACCOUNT, lambda w: w.paid.credit),
    (planted.posted_elsewhere, Kind.WRONG_PARTITION, lambda _: f"{catalogue.LEDGER_POSTINGS}:{ELSEWHERE}:9000"),
    (planted.in_two_outcomes, Kind.TWO_OUTCOMES, lambda w: end(w, catalogue.PAYMENTS_DEAD_LETTER, HOME)),
    (planted.in_no_outcome, Kind.NO_OUTCOME, lambda w: w.refused[0]),
    (planted.raw_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.accepted),
    (planted.accepted_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.transfer),
    (planted.transfer_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.debit),
    (planted.leg_source_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.leg),
    (planted.transfer_twice, Kind.DUPLICATE_TRANSFER, lambda w: end(w, catalogue.LEDGER_TRANSFERS, HOME)),
    (planted.wrong_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.debit),
    (planted.dedup_without_first, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (planted.dedup_of_another, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (planted.dedup_of_other_content, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (planted.accepted_twice, Kind.ACCEPTED_TWICE, lambda w: end(w, catalogue.PAYMENTS_ACCEPTED, HOME)),
    (planted.skipped_by_ingest, Kind.SKIPPED, lambda w: end(w, catalogue.PAYMENTS_RAW, 0)),
    (planted.ahead_of_ingest, Kind.AHEAD, lambda w: w.last.raw),
    (planted.ahead_of_transform, Kind.AHEAD, lambda w: w.last.accepted),
    (planted.ahead_of_ledger, Kind.AHEAD, lambda w: w.last.transfer),
    (planted.skipped_by_transform, Kind.SKIPPED, lambda w: w.last.accepted),
    (planted.skipped_by_ledger, Kind.SKIPPED, lambda w: w.last.leg),
    (planted.skipped_by_ledger, Kind.CREDIT_MISSING, lambda w: w.last.raw),
    (planted.reversed_twice, Kind.WRONG_REVERSAL, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (planted.reversed_in_part, Kind.WRONG_REVERSAL, lambda w: w.reversed.debit),
    (planted.account_event_lost, Kind.SKIPPED, lambda w: w.opened[0]),
    (planted.account_event_twice, Kind.DUPLICATE_ACCOUNT_EVENT, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (planted.account_event_altered, Kind.ALTERED_POSTING, lambda w: w.opened[1]),
    (planted.account_event_altered, Kind.TERMS_DIFFER, lambda w: last_state(w, ALICE)),
    (planted.undecodable, Kind.UNREADABLE, lambda w: w.paid.debit),
    (links.unknown_changelog_key, Kind.UNREADABLE, lambda w: end(w, catalogue.LEDGER_BALANCES, HOME)),
    (links.unreadable_next_offset, Kind.UNREADABLE, lambda w: end(w, catalogue.LEDGER_BALANCES, HOME)),
    (links.unreadable_account, Kind.UNREADABLE, lambda w: end(w, catalogue.LEDGER_BALANCES, AWAY)),
    (links.unreadable_expected_balance, Kind.UNREADABLE, lambda w: end(w, catalogue.REFERENCE_BALANCES, AWAY)),
    (links.unreadable_accepted, Kind.UNREADABLE, lambda w: w.paid.accepted),
    (links.unreadable_repeat, Kind.UNREADABLE, lambda w: w.repeated[1]),
    (links.unreadable_transfer, Kind.UNREADABLE, lambda w: w.paid.transfer),
    (links.unknown_leg, Kind.UNREADABLE, lambda w: w.paid.debit),
    (links.state_of_no_partition, Kind.BALANCE_DIFFERS, lambda w: end(w, catalogue.LEDGER_BALANCES, HOME)),
    (links.state_on_another_partition, Kind.BALANCE_DIFFERS, lambda w: end(w, catalogue.LEDGER_BALANCES, HOME)),
    (
        links.state_on_a_partition_that_is_read_first,
        Kind.BALANCE_DIFFERS,
        lambda w: end(w, catalogue.LEDGER_BALANCES, ELSEWHERE),
    ),
    (links.entry_of_no_partition, Kind.FOREIGN_ACCOUNT, lambda w: w.paid.credit),
    (links.dead_letter_elsewhere, Kind.WRONG_PARTITION, lambda w: end(w, catalogue.PAYMENTS_DEAD_LETTER, 3)),
    (links.accepted_elsewhere, Kind.WRONG_PARTITION, lambda w: end(w, catalogue.PAYMENTS_ACCEPTED, ELSEWHERE)),
    (links.transfer_elsewhere, Kind.WRONG_PARTITION, lambda w: end(w, catalogue.LEDGER_TRANSFERS, ELSEWHERE)),
    (links.outcome_of_two, Kind.ORIGIN_MISMATCH, lambda w: w.paid.accepted),
    (links.account_event_of_a_payment, Kind.ORIGIN_MISMATCH, lambda w: w.opened[1]),
    (links.transfer_of_another_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.transfer),
    (links.transfer_of_an_impossible_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.transfer),
    (links.posting_of_an_endless_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.debit),
    (links.leg_of_another_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.leg),
    (links.leg_of_no_transfer, Kind.SOURCE_MISSING, lambda w: w.paid.leg),
    (links.leg_of_a_far_offset, Kind.SOURCE_MISSING, lambda w: w.paid.leg),
    (links.transfer_of_a_far_offset, Kind.SOURCE_MISSING, lambda w: w.paid.transfer),
    (links.posting_of_a_far_offset, Kind.SOURCE_MISSING, lambda w: w.paid.debit),
    (links.outcome_of_a_far_offset, Kind.SOURCE_MISSING, lambda w: w.refused[1]),
    (links.decline_of_a_leg, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (links.debit_of_a_leg, Kind.ALTERED_POSTING, lambda w: w.last.debit),
    (links.credit_of_a_transfer, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (links.debit_of_a_declined_transfer, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (links.repeat_of_a_later_record, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (fields.decline_of_another_day, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (fields.payment_declined_as_a_reversal, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (fields.reversal_declined_as_a_payment, Kind.ALTERED_POSTING, wrong_decisions.posted),
    (fields.opening_declined_on_another_day, Kind.ALTERED_POSTING, wrong_decisions.posted),
    (fields.command_declined_on_a_day, Kind.ALTERED_POSTING, wrong_decisions.posted),
    (fields.fee_stated_wrongly, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (fields.debit_that_reverses, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (fields.credit_with_a_fee, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (fields.credit_with_a_rate, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (fields.credit_with_a_text, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (fields.credit_that_reverses, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (fields.reversal_of_another_payment, Kind.ALTERED_POSTING, lambda w: w.reversed.debit),
    (fields.reversal_under_another_name, Kind.ALTERED_POSTING, lambda w: w.reversed.debit),
    (fields.reversal_of_another_day, Kind.ALTERED_POSTING, lambda w: w.reversed.debit),
    (fields.reversal_with_another_text, Kind.ALTERED_POSTING, lambda w: w.reversed.debit),
    (fields.reversal_with_a_price, Kind.ALTERED_POSTING, lambda w: w.reversed.debit),
    (
        fields.reversal_at_the_cost_of_another_creditor,
        Kind.WRONG_REVERSAL,
        lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME),
    ),
]


@pytest.mark.parametrize(
    ("plant", "kind", "where"), PLANTED, ids=[f"{plant.__name__}-{kind}" for plant, kind, _ in PLANTED]
)
def test_planted_error_is_found(plant: Callable[[Clean], None], kind: Kind, where: Callable[[Clean], object]) -> None:
    world = Clean()
    assert world.audit().verdict == "pass"
    plant(world)
    verdict = world.audit()
    assert (kind.value, str(where(world))) in found(verdict)
    assert verdict.verdict == "fail"
    assert verdict.kinds[kind] >= 1
    if INVARIANT_OF[kind] != BANK:
        assert verdict.invariants[INVARIANT_OF[kind]].result == "fail"


def test_every_kind_is_planted_somewhere() -> None:
    of_effects = {kind for kind in Kind if INVARIANT_OF[kind] == "I11"}
    of_decisions = {kind for _, kind, _ in (*DECISIONS, *OWNERS)}
    assert {kind for _, kind, _ in PLANTED} | {Kind.BANK_DIFFERS} | of_effects | of_decisions == set(Kind)


@pytest.mark.parametrize(
    ("plant", "figures"),
    [
        (planted.lost, (1, 0, 0)),
        (planted.two_debits, (0, 1, 0)),
        (planted.two_credits, (0, 1, 0)),
        (planted.debit_after_decline, (0, 1, 1)),
        (planted.leg_missing, (0, 0, 1)),
        (planted.changelog_behind, (0, 0, 1)),
        (planted.changelog_without_account, (0, 0, 5)),
    ],
)
def test_lost_duplicated_and_torn_are_counted(plant: Callable[[Clean], None], figures: tuple[int, int, int]) -> None:
    world = Clean()
    plant(world)
    verdict = world.audit()
    assert (verdict.lost, verdict.duplicated, verdict.torn) == figures
