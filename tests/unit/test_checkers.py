"""The audit passes a consistent system, does not pass without data, and checks the bank's own balances."""

import hashlib

import msgspec
import pytest

from deploy.checkers.audit import TOPICS, Audit
from deploy.checkers.verdict import INVARIANTS, Kind
from shared.events import catalogue
from shared.events.partitions import partition_for
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from tests import planted
from tests.partitions import PARTITIONS
from tests.planted import ALICE, AWAY, BOB, HOME, Clean
from tests.world import Trail, World, found, last_state


def test_partitions_of_the_sample_differ() -> None:
    assert HOME != AWAY


def test_consistent_world_passes() -> None:
    world = Clean()
    verdict = world.audit()
    assert verdict.violations == []
    assert verdict.verdict == "pass"
    assert {name: result.result for name, result in verdict.invariants.items()} == dict.fromkeys(INVARIANTS, "pass")
    counts = (verdict.records_in, verdict.accepted, verdict.deduplicated, verdict.dead_lettered)
    assert counts == (9, 7, 1, 1)
    assert (verdict.postings, verdict.declines) == (12, 1)
    assert (verdict.lost, verdict.duplicated, verdict.torn, verdict.drift_minor) == (0, 0, 0, 0)
    assert (verdict.accounts, verdict.accounts_exact) == (1, 1)


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_a_consistent_world_of_another_number_of_partitions_passes(partitions: int) -> None:
    verdict = Clean(partitions).audit()
    assert (verdict.verdict, verdict.violations) == ("pass", [])
    assert {result.result for result in verdict.invariants.values()} == {"pass"}
    assert {len(ends) for ends in verdict.end_offsets.values()} == {partitions}


@pytest.mark.parametrize(("partitions", "judged"), [(1, 3), (3, 12), (6, 5), (12, 3)])
def test_accounts_that_live_elsewhere_by_another_number_of_partitions_are_found(partitions: int, judged: int) -> None:
    world = World(partitions)
    debtor = next(name for name in map(str, range(100)) if partition_for(name, judged) != world.home(name))
    world.account_event(AccountOpened(debtor, None))
    trail = world.pay("p", debtor, f"cash@{world.home(debtor)}", 100)
    assert world.audit().verdict == "pass"
    world.partitions = judged
    kinds = world.audit().kinds
    assert {Kind.WRONG_PARTITION.value, Kind.FOREIGN_ACCOUNT.value, Kind.BALANCE_DIFFERS.value} <= kinds.keys(), trail


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_a_house_account_beyond_the_last_partition_is_found(partitions: int) -> None:
    world = Clean(partitions)
    world.balances[f"cash@{partitions}"]["CZK"] += 0
    at = world.log_account(f"cash@{partitions}", 0)
    assert found(world.audit()) == {(Kind.BALANCE_DIFFERS.value, str(at))}


@pytest.mark.parametrize("partitions", [3, 12])
def test_errors_are_found_with_another_number_of_partitions(partitions: int) -> None:
    last = f"cash@{partitions - 1}"
    world = World(partitions)
    lost = world.pay("lost", last, ALICE, 100)
    twice = world.pay("twice", last, BOB, 100)
    assert world.audit().verdict == "pass"
    assert {lost.raw.partition, twice.debit.partition} == {partitions - 1}
    world.remove(lost.accepted)
    again = world.copy(twice.debit)
    assert {(Kind.NO_OUTCOME.value, str(lost.raw)), (Kind.DUPLICATE_DEBIT.value, str(again))} <= found(world.audit())


def test_without_data_the_audit_does_not_pass() -> None:
    verdict = World().audit()
    assert verdict.verdict == "no_data"
    assert {result.result for result in verdict.invariants.values()} == {"no_data"}


def test_only_refused_records_pass_without_claiming_postings() -> None:
    world = World()
    world.refuse(b"{")
    verdict = world.audit()
    assert verdict.verdict == "pass"
    assert verdict.invariants["I6"].result == "pass"
    assert verdict.invariants["I3"].result == "no_data"


def test_drift_is_counted_over_currencies() -> None:
    world = Clean()
    planted.unbalanced_by_currency(world)
    assert world.audit().drift_minor == 2500 + 2500


def test_the_digest_covers_the_balances_that_are_not_0_sorted_by_their_bytes() -> None:
    world = Clean()
    lines = sorted(
        f"{account} {currency} {minor}\n".encode()
        for account, balances in world.balances.items()
        for currency, minor in balances.items()
        if minor
    )
    assert len(lines) > 2
    assert world.audit().balances_digest == hashlib.sha256(b"".join(lines)).hexdigest()


def test_balance_changed_in_the_changelog_is_found() -> None:
    world = Clean()
    world.balances[BOB]["CZK"] += 1
    at = world.log_account(BOB, AWAY)
    verdict = world.audit()
    assert (Kind.BALANCE_DIFFERS.value, str(at)) in found(verdict)
    assert (Kind.DRIFT.value, catalogue.LEDGER_BALANCES) in found(verdict)
    assert verdict.drift_minor == 1


def test_account_deleted_from_the_changelog_is_found() -> None:
    world = Clean()
    world.append(catalogue.LEDGER_BALANCES, AWAY, None, key=b"account/bob")
    assert (Kind.BALANCE_DIFFERS.value, f"{catalogue.LEDGER_BALANCES}:{AWAY}") in found(world.audit())


@pytest.mark.parametrize(
    ("off_by", "figures", "verdict"),
    [
        (0, (1, 0, 0), "pass"),
        (1, (0, 1, 0), "pass"),
        (-100, (0, 1, 0), "pass"),
        (100, (0, 1, 0), "pass"),
        (101, (0, 0, 1), "fail"),
        (-101, (0, 0, 1), "fail"),
        (1_000_000, (0, 0, 1), "fail"),
    ],
)
def test_bank_balance_is_compared_within_rounding(off_by: int, figures: tuple[int, int, int], verdict: str) -> None:
    world = Clean()
    world.expect(BOB, 7500 + off_by + 4200, opening_minor=4200)
    result = world.audit()
    assert (result.accounts_exact, result.accounts_within_rounding, result.accounts_off) == figures
    assert result.verdict == verdict
    assert ((Kind.BANK_DIFFERS.value, str(last_state(world, BOB))) in found(result)) == (verdict == "fail")


def test_bank_balance_of_an_account_never_booked_is_off() -> None:
    world = Clean()
    world.expect("dave", 500)
    verdict = world.audit()
    assert (verdict.accounts, verdict.accounts_off) == (2, 1)
    assert (Kind.BANK_DIFFERS.value, f"{catalogue.LEDGER_BALANCES}:{world.home('dave')}") in found(verdict)


def test_bank_balance_withdrawn_is_not_compared() -> None:
    world = Clean()
    world.expect("dave", 500)
    world.append(catalogue.REFERENCE_BALANCES, world.home("dave"), None, key=b"dave")
    assert world.audit().accounts == 1


def test_identity_may_come_again_outside_the_window() -> None:
    world = Clean()
    for number in range(3):
        world.pay(f"more-{number}", ALICE, BOB, 1)
    world.pay("p6", ALICE, BOB, 4000)
    world.expect(BOB, 7500 + 3 + 4000)
    assert world.audit(identity_window=3).verdict == "pass"
    assert world.audit(identity_window=4).kinds == {Kind.ACCEPTED_TWICE: 1}


def test_older_schema_version_is_not_an_alteration() -> None:
    world = Clean()
    value = b'{"schema_version":1,"payment_id":"p2","account_from":"alice","account_to":"bob","amount_minor":2500,'
    value += b'"currency":"CZK","occurred_at":"2026-01-05T12:00:00Z"}'
    world.change(world.paid.raw, value)
    world.change(world.repeated[0], value)
    assert world.audit().verdict == "pass"


def test_account_event_that_changes_nothing_needs_no_posting() -> None:
    world = Clean()
    at = world.append(catalogue.LEDGER_TRANSFERS, HOME, encode_transfer(AccountOpened(ALICE, None)))
    world.committed["ledger"][HOME] = at.offset + 1
    world.log_next_offset(HOME, at.offset + 1)
    assert world.audit().verdict == "pass"


def test_violations_are_counted_beyond_those_kept() -> None:
    audit = Audit({}, violations_kept=2, partitions=PARTITIONS)
    world = World()
    for number in range(5):
        world.raw(b"%d" % number, 0)
    audit.feed(catalogue.PAYMENTS_RAW, 0, world.logs[catalogue.PAYMENTS_RAW, 0])
    for marker in range(1, 9, 2):
        audit.account_for(0, range(marker, marker + 1))
    verdict = audit.finish({})
    assert (len(verdict.violations), verdict.violations_total) == (2, 5)


def test_topics_are_fed_in_order() -> None:
    audit = Audit({}, partitions=PARTITIONS)
    audit.feed(TOPICS[1], 0, [])
    with pytest.raises(ValueError, match="comes before"):
        audit.feed(TOPICS[0], 0, [])


def test_verdict_goes_into_json() -> None:
    verdict = Clean().audit()
    shown = msgspec.json.decode(msgspec.json.encode(verdict))
    assert shown["verdict"] == "pass"
    assert shown["invariants"]["I1"] == {"result": "pass", "checked": 2, "violations": 0}
    assert shown["end_offsets"][catalogue.PAYMENTS_RAW][HOME] > 0


def test_trails_name_different_records() -> None:
    trail: Trail = Clean().paid
    assert len({trail.raw, trail.accepted, trail.transfer, trail.debit, trail.leg, trail.credit}) == 6


def test_reversal_to_a_closed_debtor_goes_to_suspense() -> None:
    world = Clean()
    world.account_event(AccountClosed(ALICE))
    world.reverse("r2", ALICE, "p2", to_suspense=True)
    world.expect(BOB, 1000 + 4000)
    assert world.audit().verdict == "pass"
