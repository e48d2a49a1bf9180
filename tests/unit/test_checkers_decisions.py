"""Each wrong decision is found by kind and coordinates, and decisions that may be right are not violations."""

from collections.abc import Callable

import msgspec
import pytest

from deploy.checkers.reference import STALE_MS
from deploy.checkers.verdict import INVARIANT_OF, Kind
from shared.events import catalogue
from shared.events.headers import REPAIR, Coordinates
from shared.events.payments import SCHEMA_VERSION, Payment, Repeat, encode_instruction, encode_repeat
from shared.events.postings import encode_ledger_event
from shared.events.reference import Fee, encode_reference
from shared.events.transfers import AccountOpened, PricedBy, decode_transfer
from tests import planted_decisions as wrong
from tests import planted_links as links
from tests import planted_owners as owners
from tests import wrong_decisions
from tests.harness import ROOT
from tests.planted import ALICE, BOB, ELSEWHERE, HOME, Clean, posting_at
from tests.world import AT_MS, DATE, World, end, found

Where = Callable[[Clean], object]


def hole(world: Clean) -> object:
    return f"{catalogue.PAYMENTS_RAW}:{HOME}:{world.hole}"


OTHERS: list[tuple[Callable[[Clean], None], Kind, Where]] = [
    (links.transfer_elsewhere, Kind.WRONG_PARTITION, lambda w: end(w, catalogue.LEDGER_TRANSFERS, ELSEWHERE)),
    (wrong.conversion_rounded_up, Kind.WRONG_PRICE, wrong_decisions.transfer),
    (wrong.declined_for_another_reason_than_its_transfer, Kind.WRONG_DECLINE, wrong_decisions.posted),
    (wrong.account_event_without_a_change, Kind.NEEDLESS_ACCOUNT_EVENT, wrong_decisions.posted),
    (wrong.account_event_lost_between_two, Kind.SKIPPED, lambda w: w.opened[0]),
    (wrong.first_opening_lost, Kind.SKIPPED, lambda w: w.opened[0]),
    (wrong.refuse("amount_not_positive"), Kind.WRONG_REFUSAL, wrong_decisions.letter),
    (wrong.refuse("field_invalid", currency="XYZ"), Kind.WRONG_REFUSAL, wrong_decisions.letter),
    (wrong.hole_in_the_input, Kind.RAW_MISSING, hole),
    (wrong.hole_at_the_end_of_the_input, Kind.RAW_MISSING, hole),
    (wrong.input_expired, Kind.RAW_MISSING, hole),
]
"""Errors that leave all records in agreement, and are not among the decisions that Spark takes again."""

PLANTED: list[tuple[Callable[[Clean], None], Kind, Where]] = [
    *((one.plant, one.kind, one.at) for one in wrong_decisions.ALL),
    *OTHERS,
]


@pytest.mark.parametrize(
    ("plant", "kind", "where"), PLANTED, ids=[f"{plant.__name__}-{kind}" for plant, kind, _ in PLANTED]
)
def test_a_wrong_decision_is_found(plant: Callable[[Clean], None], kind: Kind, where: Where) -> None:
    world = Clean()
    plant(world)
    verdict = world.audit()
    assert (kind.value, str(where(world))) in found(verdict)
    assert (verdict.verdict, verdict.invariants[INVARIANT_OF[kind]].result) == ("fail", "fail")


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("currency_unknown", {"currency": "XYZ"}),
        ("account_invalid", {"creditor": "a b"}),
        ("account_invalid", {"creditor": "cash@99"}),
        ("same_account", {"creditor": ALICE}),
        ("amount_not_positive", {"amount_minor": 0}),
        ("field_invalid", {"payment_id": "p\n"}),
        ("field_invalid", {"value_date": "2026-02-30"}),
        ("schema_version_unknown", {"schema_version": 9}),
        ("amount_not_positive", {"amount_minor": -1, "currency": "XYZ"}),
        ("currency_unknown", {"amount_minor": -1, "currency": "XYZ"}),
        ("identity_conflict", {"payment_id": "p2"}),
        ("too_large", {}),
    ],
)
def test_a_right_refusal_passes(reason: str, changes: dict[str, object]) -> None:
    world = Clean()
    wrong.refuse_payment(world, reason, **changes)
    assert world.audit().violations == []


def test_a_payment_on_a_wrong_partition_is_refused() -> None:
    world = Clean()
    payment = Payment("w", BOB, ALICE, 100, "CZK", SCHEMA_VERSION)
    world.dead_letter(world.raw(encode_instruction(payment), HOME), "wrong_partition")
    assert world.audit().violations == []


@pytest.mark.parametrize(("late_ms", "passes"), [(STALE_MS, True), (STALE_MS + 1, False)])
@pytest.mark.parametrize("named", [True, False])
def test_a_superseded_version_may_be_used_for_a_minute(late_ms: int, passes: bool, named: bool) -> None:
    world = Clean()
    at = world.refer(catalogue.REFERENCE_FEES, "CZK", Fee(fixed_minor=77))
    world.now_ms += 1000
    trail = world.pay("w", ALICE, BOB, 1000, fee_minor=77)
    wrong.change_transfer(world, trail, priced_by=PricedBy(at, None) if named else None)
    world.now_ms -= late_ms
    world.refer(catalogue.REFERENCE_FEES, "CZK", Fee(fixed_minor=31))
    kind = Kind.WRONG_REFERENCE if named else Kind.WRONG_PRICE
    world.expect(BOB, 7500 + 1000)
    assert world.audit().kinds == ({} if passes else {kind: 1})


def test_a_transfer_that_names_no_versions_may_have_any_of_the_last_minute() -> None:
    for fee_minor, passes in ((76, True), (77, True), (78, False)):
        world = Clean()
        trail = world.pay("w", ALICE, BOB, 1000, fee_minor=fee_minor)
        wrong.change_transfer(world, trail, priced_by=None)
        wrong.change_reference(world, catalogue.REFERENCE_FEES, "CZK", Fee(fixed_minor=76))
        world.now_ms -= 30_000
        world.refer(catalogue.REFERENCE_FEES, "CZK", Fee(fixed_minor=77, min_minor=1))
        world.expect(BOB, 7500 + 1000)
        assert (world.audit().verdict == "pass") is passes, fee_minor


@pytest.mark.parametrize("named", [True, False])
def test_what_may_be_compacted_is_left_open(named: bool) -> None:
    world = Clean()
    trail = world.pay("w", ALICE, BOB, 1000, fee_minor=77)
    at = wrong.decoded_fee(world, trail)
    world.remove(Coordinates(catalogue.REFERENCE_FEES, 0, at))
    if not named:
        wrong.change_transfer(world, trail, priced_by=None)
        for record in list(world.logs[catalogue.REFERENCE_FEES, 0]):
            world.remove(Coordinates(catalogue.REFERENCE_FEES, 0, record.offset))
    world.expect(BOB, 7500 + 1000)
    late = world.audit(compacted_before_ms=AT_MS + 1)
    assert late.violations == []
    assert late.decisions_open >= 1
    early = world.audit(compacted_before_ms=AT_MS - STALE_MS)
    assert early.verdict == "fail"
    assert early.decisions_open == 0


def test_an_original_beyond_the_window_may_be_found_or_not() -> None:
    for reason in ("original_not_found", "already_reversed"):
        world = Clean()
        wrong.decline_reversal(world, "p3", reason)
        assert world.audit(reversal_window=1).violations == []
    world = Clean()
    wrong.decline_reversal(world, "p2", "original_not_found")
    assert world.audit(reversal_window=3).kinds == {Kind.WRONG_DECLINE: 1}
    assert world.audit(reversal_window=2).violations == []


def test_decisions_before_a_repair_came_are_left_open() -> None:
    """The ledger knew of a credit whose posting was lost; a debit that it covered came before the repair."""
    world = Clean()
    credited = world.pay("c", ALICE, BOB, 500)
    world.pay("w", BOB, ALICE, 7500 + 500)
    world.expect(BOB, 0)
    assert world.audit().violations == []
    world.remove(credited.credit)
    assert Kind.WRONG_DEBIT in world.audit().kinds
    repair(world, credited.credit)
    verdict = world.audit()
    assert (verdict.violations, verdict.decisions_open) == ([], 1)


def repair(world: Clean, removed: Coordinates) -> None:
    """Write a removed record again as `once repair` does."""
    world.add_header(world.restore(removed), REPAIR, "repair-1:0")


@pytest.mark.parametrize(
    ("amount_minor", "topic"), [(10, catalogue.PAYMENTS_DEDUPLICATED), (11, catalogue.PAYMENTS_DEAD_LETTER)]
)
@pytest.mark.parametrize("as_repeat", [True, False])
def test_only_a_repaired_outcome_may_follow_from_a_later_payment(
    amount_minor: int, topic: str, *, as_repeat: bool
) -> None:
    """A payment was lost, then sent again and accepted. Its repair finds the identity taken."""
    world = Clean()
    payment = Payment("sent-again", ALICE, BOB, amount_minor, "CZK", SCHEMA_VERSION, value_date=DATE)
    lost = world.raw(encode_instruction(payment), HOME)
    again = world.pay("sent-again", ALICE, BOB, 10)
    world.expect(BOB, 7500 + 10)
    if as_repeat:
        repeat = encode_repeat(Repeat("sent-again", ALICE, str(again.raw)))
        outcome = world.outcome(catalogue.PAYMENTS_DEDUPLICATED, lost, repeat)
    else:
        outcome = world.dead_letter(lost, "identity_conflict")
    wrong = {(Kind.WRONG_FIRST if as_repeat else Kind.WRONG_REFUSAL, str(outcome))}
    assert found(world.audit()) == wrong
    world.add_header(outcome, REPAIR, "repair-1:0")
    # The content decides which of the two is right
    assert found(world.audit()) == (set() if outcome.topic == topic else wrong)


def test_a_repaired_outcome_does_not_follow_from_itself() -> None:
    world = Clean()
    raw = world.paid.raw
    repeat = world.outcome(catalogue.PAYMENTS_DEDUPLICATED, raw, encode_repeat(Repeat("p2", ALICE, str(raw))))
    world.add_header(repeat, REPAIR, "repair-1:0")
    assert (Kind.WRONG_FIRST, str(repeat)) in found(world.audit())


def test_a_repair_does_not_explain_decisions_on_other_accounts() -> None:
    """On the same partition, a posting of other accounts came late, and a decline, which changes no account."""
    for late in ("debit", "decline"):
        world = Clean()
        cash, poor = f"cash@{HOME}", world.client("poor", HOME)
        trail = world.pay("c", cash, ALICE, 5) if late == "debit" else world.decline("c", poor, BOB)
        owners.debited_by_another_client(world)
        spent = owners.own(world, "spent")
        with owners.submitted(world, owners.ACME):
            world.pay("v", spent, BOB, 10_001)
        world.remove(trail.debit)
        repair(world, trail.debit)
        world.expect(BOB, world.balances[BOB]["CZK"])
        verdict = world.audit()
        assert (verdict.kinds, verdict.decisions_open) == ({Kind.WRONG_DEBIT: 1, Kind.UNAUTHORISED: 1}, 0), late


def test_a_payment_that_was_repaired_explains_no_debit_by_a_stranger() -> None:
    """It covers debits of its creditor. Whose account it is, only account events say."""
    world = Clean()
    account = owners.own(world)
    credited = world.pay("c", ALICE, account, 500)
    with owners.submitted(world, owners.OTHER):
        world.pay("w", account, BOB, 1)
    world.remove(credited.credit)
    repair(world, credited.credit)
    world.expect(BOB, 7500 + 1)
    assert world.audit().kinds == {Kind.UNAUTHORISED: 1}


def test_a_repaired_debit_that_the_fold_does_not_lead_to_is_left_open() -> None:
    """Its credit leg shows that it was booked. Cover and owner may have been others then."""
    world = Clean()
    account = owners.own(world)
    with owners.submitted(world, owners.OTHER):
        trail = world.pay("w", account, BOB, 10_001)
    world.remove(trail.debit)
    repair(world, trail.debit)
    world.expect(BOB, 7500 + 10_001)
    verdict = world.audit()
    assert (verdict.violations, verdict.decisions_open) == ([], 2)


def test_a_repaired_decline_that_the_fold_does_not_lead_to_is_left_open() -> None:
    """An effect request shows its reason. A credit came since."""
    world = Clean()
    poor = world.client("poor", HOME)
    trail = world.decline("w", poor, BOB)
    world.pay("c", ALICE, poor, 500_000_000)
    world.expect(BOB, 7500)
    assert world.audit().violations == []
    world.remove(trail.debit)
    repair(world, trail.debit)
    verdict = world.audit()
    assert (verdict.violations, verdict.decisions_open) == ([], 1)


@pytest.mark.parametrize("repaired", [True, False])
def test_only_a_repair_writes_a_payment_behind_its_reversal(*, repaired: bool) -> None:
    world = Clean()
    paid = world.pay("paid", ALICE, BOB, 10)
    reversed_ = world.reverse("v", ALICE, "paid")
    world.remove(paid.debit)
    again = world.restore(paid.debit)
    if repaired:
        world.add_header(again, REPAIR, "repair-1:0")
    wrong.decline_reversal(world, "paid", "already_reversed")
    assert found(world.audit()) == (set() if repaired else {(Kind.WRONG_REVERSAL.value, str(reversed_.debit))})


def test_a_second_reversal_is_found_although_a_repair_wrote_the_payment_behind_it() -> None:
    world = Clean()
    paid = world.pay("paid", ALICE, BOB, 10)
    for name in ("v1", "v2"):
        reversed_ = world.reverse(name, ALICE, "paid")
    world.expect(BOB, 7500 - 10)
    world.remove(paid.debit)
    repair(world, paid.debit)
    assert found(world.audit()) == {(Kind.WRONG_REVERSAL.value, str(reversed_.debit))}


def test_a_repaired_debit_explains_no_debit_beyond_cover() -> None:
    """It takes from the account: it explains a decline only."""
    world = Clean()
    paid = world.pay("c", BOB, ALICE, 500)
    world.pay("w", BOB, ALICE, 7500 + 1)
    world.remove(paid.debit)
    repair(world, paid.debit)
    world.expect(BOB, -500 - 1)
    verdict = world.audit()
    assert verdict.kinds == {Kind.WRONG_DEBIT: 1}


def test_a_command_for_an_account_with_a_state_may_change_nothing() -> None:
    world = Clean()
    credited, opened = world.client("credited", HOME), world.client("opened", HOME)
    world.pay("c", ALICE, credited, 5)
    world.account_event(AccountOpened(opened, 0))
    for account in (credited, opened):
        world.command(AccountOpened(account, 0))
    assert world.audit().violations == []


def test_a_repaired_command_may_repeat_the_terms_of_a_later_one() -> None:
    world = Clean()
    lost = world.account_event(AccountOpened(BOB, 5))
    world.logs[catalogue.LEDGER_ACCOUNTS, lost[1].partition].pop()
    world.remove(lost[1])
    world.terms.pop(BOB)
    later = world.account_event(AccountOpened(BOB, 5))
    assert found(world.audit()) == {(Kind.SKIPPED.value, str(lost[0]))}
    written = world.copy(later[1])
    world.change(written, origin=lost[0], source=lost[0])
    assert (Kind.NEEDLESS_ACCOUNT_EVENT.value, str(written)) in found(world.audit())
    world.add_header(written, REPAIR, "repair-1:0")
    assert world.audit().violations == []


def test_a_debit_at_its_limit_passes() -> None:
    world = Clean()
    world.account_event(AccountOpened(BOB, 10))
    world.pay("w", BOB, ALICE, 7500 + 10)
    world.expect(BOB, -10)
    assert world.audit().violations == []


def test_requests_of_a_posting_that_names_no_subscriptions_may_follow_any_of_the_last_minute() -> None:
    world = Clean()
    for event in (world.paid.debit, world.last.debit):
        posting = msgspec.structs.replace(posting_at(world, event), notified_by=None)
        world.change(event, encode_ledger_event(posting))
    assert world.audit().violations == []
    wrong.request_and_result_lost(world)
    # None of ALICE's subscriptions in force at the same time asks for nothing, but there was none before the first
    assert world.audit().violations == []


def test_a_reference_record_that_cannot_be_read_is_reported() -> None:
    world = World()
    at = world.append(catalogue.REFERENCE_FEES, 0, b"{", b"CZK")
    world.append(catalogue.REFERENCE_FEES, 0, encode_reference(Fee(1)), b"EUR")
    assert found(world.audit()) == {(Kind.UNREADABLE.value, str(at))}


def test_every_transfer_of_the_sample_says_what_priced_it() -> None:
    world = Clean()
    for trail in (world.first, world.paid, world.converted):
        event = decode_transfer(world.at(trail.transfer).value or b"")
        assert getattr(event, "priced_by", None) is not None


def test_the_documentation_has_the_table_of_wrong_decisions() -> None:
    text = (ROOT / "docs" / "reconciliation.md").read_text()
    head = ["| planted decision | check of `once reconcile` | kind of `once verify` |", "|---|---|---|"]
    assert "\n".join(["", *head, *wrong_decisions.rows(), "", ""]) in text
    plants = [one.plant for one in wrong_decisions.ALL]
    assert len(plants) == len(set(plants)) == len(set(wrong_decisions.rows()))
    assert set(wrong_decisions.QUICK) <= set(plants)
