"""Clients and owners: wrong decisions are found by kind and coordinates, right ones and former records pass."""

from collections.abc import Callable

import pytest

from deploy.checkers.verdict import INVARIANT_OF, Kind
from shared.events import catalogue
from shared.events.headers import SUBMITTED_BY
from shared.events.installation import OWNERSHIP_KEY, Ownership, encode_ownership
from tests import planted_owners as owners
from tests import wrong_decisions
from tests.planted import ALICE, BOB, HOME, Clean
from tests.planted_owners import ACME, decide_all_kinds, former, submitted
from tests.world import end, found

Where = Callable[[Clean], object]

PLANTED: list[tuple[Callable[[Clean], None], Kind, Where]] = [
    (owners.client_altered_on_acceptance, Kind.ALTERED_OUTCOME, lambda w: w.paid.accepted),
    (owners.client_altered_on_a_dead_letter, Kind.ALTERED_OUTCOME, lambda w: w.refused[1]),
    (owners.client_altered_by_transform, Kind.ALTERED_TRANSFER, lambda w: w.paid.transfer),
    (owners.client_altered_by_the_ledger, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (owners.client_dropped_by_the_ledger, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (owners.client_on_a_credit, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (owners.client_altered_on_a_decline, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (owners.owner_altered_by_transform, Kind.ALTERED_TRANSFER, wrong_decisions.transfer),
    (owners.opening_without_an_outcome, Kind.LOST, lambda w: end(w, catalogue.PAYMENTS_RAW, HOME)),
    (owners.opening_without_an_outcome, Kind.SKIPPED, lambda w: w.opened[0]),
    (owners.opening_with_two_outcomes, Kind.DUPLICATE_ACCOUNT_EVENT, wrong_decisions.posted),
    (owners.opening_done_and_declined, Kind.DUPLICATE_DECLINE, wrong_decisions.posted),
    (owners.account_not_listed, Kind.OWNER_DIFFERS, lambda _: f"{catalogue.LEDGER_ACCOUNTS}:{HOME}"),
]


@pytest.mark.parametrize(
    ("plant", "kind", "where"), PLANTED, ids=[f"{plant.__name__}-{kind}" for plant, kind, _ in PLANTED]
)
def test_a_wrong_decision_on_ownership_is_found(plant: Callable[[Clean], None], kind: Kind, where: Where) -> None:
    world = Clean()
    plant(world)
    verdict = world.audit()
    assert (kind.value, str(where(world))) in found(verdict)
    assert (verdict.verdict, verdict.invariants[INVARIANT_OF[kind]].result) == ("fail", "fail")


@pytest.mark.parametrize("one", wrong_decisions.OWNERS, ids=lambda one: one.plant.__name__)
def test_a_wrong_decision_is_reported_once(one: wrong_decisions.Wrong) -> None:
    world = Clean()
    one.plant(world)
    world.expect(BOB, world.balances[BOB]["CZK"])
    assert world.audit().kinds == {one.kind: 1}


def test_right_decisions_on_ownership_pass() -> None:
    world = Clean()
    decide_all_kinds(world)
    verdict = world.audit()
    assert verdict.violations == []
    assert verdict.verdict == "pass"


@pytest.mark.parametrize("raw_from", [None, 10**6])
def test_before_ownership_is_enforced_every_payment_is_the_operators(raw_from: int | None) -> None:
    world = Clean(raw_from=raw_from)
    for by in (ACME, None):
        with submitted(world, by):
            world.pay(f"q-{by}", ALICE, BOB, 1)
    world.expect(BOB, world.balances[BOB]["CZK"])
    assert world.audit().violations == []
    owners.declined_as_unauthorised(world)
    assert world.audit().kinds == {Kind.WRONG_DECLINE: 1}


def test_records_of_former_versions_pass_below_the_offsets_of_ownership() -> None:
    world = former()
    assert world.audit().violations == []
    world.logs[catalogue.INSTALLATION, 0].clear()
    assert world.audit().violations == []


def test_records_of_former_versions_do_not_pass_above_the_offsets_of_ownership() -> None:
    world = former()
    world.logs[catalogue.INSTALLATION, 0] = Clean().logs[catalogue.INSTALLATION, 0]
    assert {Kind.UNAUTHORISED, Kind.WRONG_ACCOUNT_EVENT} <= world.audit().kinds.keys()


def test_a_former_version_opened_an_account_where_there_was_no_payment() -> None:
    world = former()
    owners.enforced_without_payments(world)
    assert world.audit().violations == []
    late = owners.opened_by_a_former_ledger_too_late(world)
    assert found(world.audit()) == {(Kind.WRONG_ACCOUNT_EVENT.value, str(late))}


def test_a_former_version_opened_no_account_by_a_payment() -> None:
    world = Clean(raw_from=1)
    owners.opened_without_a_version(world)
    assert (Kind.WRONG_ACCOUNT_EVENT.value, str(wrong_decisions.posted(world))) in found(world.audit())


@pytest.mark.parametrize("header", [b"", b"acme", b"acme:xyz", b"acme:0123456789abcdef:house:", b"\xff:"])
def test_a_malformed_header_names_no_client(header: bytes) -> None:
    world = Clean()
    with submitted(world, None):
        trail = world.decline("w", ALICE, BOB, because="not_authorised")
    record = world.at(trail.raw)
    log = world.logs[record.topic, record.partition]
    log[log.index(record)] = record._replace(headers=((SUBMITTED_BY, header),))
    assert world.audit().violations == []


def test_the_first_record_of_ownership_counts() -> None:
    world = Clean()
    later = encode_ownership(Ownership((10**6,) * 6, 1))
    world.append(catalogue.INSTALLATION, 0, later, OWNERSHIP_KEY)
    owners.debited_by_no_client(world)
    assert Kind.UNAUTHORISED in world.audit().kinds
