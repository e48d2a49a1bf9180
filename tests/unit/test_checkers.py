"""The audit passes a consistent system, and finds each kind of planted error, by kind and coordinates."""

from collections.abc import Callable

import msgspec
import pytest

from deploy.checkers.audit import TOPICS, Audit
from deploy.checkers.findings import BANK, INVARIANT_OF, INVARIANTS, Kind
from deploy.checkers.verdict import Verdict
from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.partitions import partition_for
from shared.events.payments import Payment, decode_instruction, encode_instruction
from shared.events.postings import Entry, Posting, decode_ledger_event, encode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, decode_transfer, encode_transfer
from tests.world import Trail, World

ALICE, BOB = "alice", "bob"
HOME = partition_for(ALICE)
AWAY = partition_for(BOB)
ELSEWHERE = (HOME + 1) % 6


class Clean(World):
    """Payments of every kind, and the trails that the tests plant errors on."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.account_event(AccountOpened(ALICE, None))
        self.account_event(AccountOpened("carol", 1000))
        self.account_event(AccountClosed("carol"))
        self.first = self.pay("p1", ALICE, BOB, 1000)
        self.paid = self.pay("p2", ALICE, BOB, 2500, fee_minor=30)
        self.converted = self.pay("p3", ALICE, BOB, 2500, fee_minor=30, converted=(100, "EUR", "0.04"))
        self.pay("p4", f"cash@{AWAY}", "carol", 700, to_suspense=True)
        self.declined = self.decline("p5", BOB, ALICE)
        self.reversed = self.reverse("r1", ALICE, "p3")
        self.repeated = self.repeat(self.paid.raw)
        self.refused = self.refuse(b"\xff no payment")
        self.last = self.pay("p6", ALICE, BOB, 4000)
        self.expect(BOB, 1000 + 2500 + 4000)


def posting_at(world: World, where: Coordinates) -> Posting:
    event = decode_ledger_event(world.at(where).value or b"")
    assert isinstance(event, Posting)
    return event


def with_entries(posting: Posting, *entries: Entry) -> bytes:
    return encode_ledger_event(msgspec.structs.replace(posting, entries=entries))


def found(verdict: Verdict) -> set[tuple[str, str]]:
    return {(violation.kind, violation.where) for violation in verdict.violations}


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


def test_nothing_seen_is_no_pass() -> None:
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


def lost(world: Clean) -> None:
    world.remove(world.last.debit)
    world.remove(world.last.credit)


def debit_missing_changes_sums(world: Clean) -> None:
    world.remove(world.last.debit)


def two_debits(world: Clean) -> None:
    world.copy(world.paid.debit)


def two_credits(world: Clean) -> None:
    world.copy(world.paid.credit)


def two_declines(world: Clean) -> None:
    world.copy(world.declined.debit)


def debit_after_decline(world: Clean) -> None:
    event = posting_at(world, world.first.debit)
    debit = msgspec.structs.replace(event, payment_id="p5", debtor=BOB)
    declined = world.declined
    world.append(
        catalogue.LEDGER_POSTINGS, AWAY, encode_ledger_event(debit), origin=declined.raw, source=declined.transfer
    )


def altered_amount(world: Clean) -> None:
    event = posting_at(world, world.paid.debit)
    rest = event.entries[2:]
    entries = (Entry(ALICE, "CZK", -2529), Entry(f"in-transit@{HOME}", "CZK", 2499), *rest)
    world.change(world.paid.debit, with_entries(event, *entries))


def altered_credit(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(
        world.paid.credit, with_entries(event, Entry(f"in-transit@{AWAY}", "CZK", -2499), Entry(BOB, "CZK", 2499))
    )


def credited_to_another(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(f"other@{AWAY}", "CZK", 2500)))


def altered_leg(world: Clean) -> None:
    leg = decode_transfer(world.at(world.paid.leg).value or b"")
    world.change(world.paid.leg, encode_transfer(msgspec.structs.replace(leg, amount_minor=2499)))


def altered_transfer(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, amount_minor=2501)))


def altered_date(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, value_date="2026-01-06")))


def altered_on_acceptance(world: Clean) -> None:
    payment = decode_instruction(world.at(world.paid.accepted).value or b"")
    assert isinstance(payment, Payment)
    world.change(world.paid.accepted, encode_instruction(msgspec.structs.replace(payment, amount_minor=2501)))


def altered_dead_letter(world: Clean) -> None:
    world.change(world.refused[1], b"\xff other bytes")


def decline_of_another(world: Clean) -> None:
    event = decode_ledger_event(world.at(world.declined.debit).value or b"")
    world.change(world.declined.debit, encode_ledger_event(msgspec.structs.replace(event, payment_id="p9")))


def orphan(world: Clean) -> None:
    world.change(world.copy(world.paid.debit), origin=world.repeated[0])


def orphan_credit(world: Clean) -> None:
    world.change(world.copy(world.paid.credit), origin=world.declined.raw)


def leg_missing(world: Clean) -> None:
    world.remove(world.paid.leg)


def leg_twice(world: Clean) -> None:
    world.copy(world.paid.leg)


def leg_without_debit(world: Clean) -> None:
    world.change(world.copy(world.paid.leg), source=world.declined.transfer, origin=world.declined.raw)


def changelog_behind(world: Clean) -> None:
    world.log_next_offset(HOME, world.last.transfer.offset)


def changelog_without_account(world: Clean) -> None:
    log = world.logs[catalogue.LEDGER_BALANCES, HOME]
    log[:] = [record for record in log if record.key != b"account/alice"]


def unbalanced(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(BOB, "CZK", 2501)))


def unbalanced_by_currency(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(BOB, "EUR", 2500)))


def foreign_account(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    entries = (Entry(f"in-transit@{HOME}", "CZK", -2500), event.entries[1])
    world.change(world.paid.credit, with_entries(event, *entries))


def posted_elsewhere(world: Clean) -> None:
    record = world.remove(world.last.debit)
    world.logs[catalogue.LEDGER_POSTINGS, ELSEWHERE].append(record._replace(partition=ELSEWHERE, offset=9000))


def in_two_outcomes(world: Clean) -> None:
    raw = world.paid.raw
    world.outcome(catalogue.PAYMENTS_DEAD_LETTER, raw, world.at(raw).value or b"")


def in_no_outcome(world: Clean) -> None:
    world.remove(world.refused[1])


def raw_aborted(world: Clean) -> None:
    world.remove(world.paid.raw)


def accepted_aborted(world: Clean) -> None:
    world.remove(world.paid.accepted)


def transfer_aborted(world: Clean) -> None:
    world.remove(world.paid.transfer)


def leg_source_aborted(world: Clean) -> None:
    world.change(world.paid.leg, source=world.paid.transfer._replace(offset=world.paid.transfer.offset + 1))


def transfer_twice(world: Clean) -> None:
    world.copy(world.paid.transfer)


def wrong_origin(world: Clean) -> None:
    world.change(world.paid.debit, origin=world.first.raw)


def dedup_without_first(world: Clean) -> None:
    world.change(world.repeated[1], b'{"payment_id":"p2","debtor":"alice","first":"payments.raw:0:900"}')


def dedup_of_another(world: Clean) -> None:
    value = b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % world.first.raw.encode()
    world.change(world.repeated[1], value)


def dedup_of_other_content(world: Clean) -> None:
    payment = decode_instruction(world.at(world.repeated[0]).value or b"")
    assert isinstance(payment, Payment)
    world.change(world.repeated[0], encode_instruction(msgspec.structs.replace(payment, amount_minor=9)))


def accepted_twice(world: Clean) -> None:
    world.pay("p2", ALICE, BOB, 1)


def skipped_by_ingest(world: Clean) -> None:
    world.raw(b"never taken", 0)


def ahead_of_ingest(world: Clean) -> None:
    world.committed["ingest"][HOME] = world.last.raw.offset


def ahead_of_transform(world: Clean) -> None:
    world.committed["transform"][HOME] = world.last.accepted.offset


def ahead_of_ledger(world: Clean) -> None:
    world.committed["ledger"][HOME] = world.last.transfer.offset


def skipped_by_transform(world: Clean) -> None:
    world.remove(world.last.transfer)


def skipped_by_ledger(world: Clean) -> None:
    world.remove(world.last.credit)


def reversed_twice(world: Clean) -> None:
    world.reverse("r2", ALICE, "p3")


def reversed_in_part(world: Clean) -> None:
    event = posting_at(world, world.reversed.debit)
    fee, rest = event.entries[2], event.entries[3:]
    assert fee.account == f"fees@{HOME}"
    entries = (Entry(ALICE, "CZK", 2500), event.entries[1], *rest)
    world.change(world.reversed.debit, with_entries(event, *entries))


def account_event_twice(world: Clean) -> None:
    world.copy(world.opened[1])


def account_event_altered(world: Clean) -> None:
    world.change(world.opened[1], encode_ledger_event(AccountOpened(ALICE, 5)))


def undecodable(world: Clean) -> None:
    world.change(world.paid.debit, b"{}")


PLANTED: list[tuple[Callable[[Clean], None], Kind, Callable[[Clean], object]]] = [
    (lost, Kind.LOST, lambda w: w.last.raw),
    (debit_missing_changes_sums, Kind.ORPHAN_CREDIT, lambda w: w.last.raw),
    (debit_missing_changes_sums, Kind.ORPHAN_CREDIT_LEG, lambda w: w.last.leg),
    (debit_missing_changes_sums, Kind.IN_TRANSIT, lambda _: catalogue.LEDGER_POSTINGS),
    (two_debits, Kind.DUPLICATE_DEBIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (two_credits, Kind.DUPLICATE_CREDIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (two_declines, Kind.DUPLICATE_DECLINE, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (debit_after_decline, Kind.DUPLICATE_DEBIT, lambda w: end(w, catalogue.LEDGER_POSTINGS, AWAY)),
    (altered_amount, Kind.ALTERED_POSTING, lambda w: w.paid.debit),
    (altered_amount, Kind.ALTERED_CREDIT_LEG, lambda w: w.paid.leg),
    (altered_credit, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (credited_to_another, Kind.ALTERED_POSTING, lambda w: w.paid.credit),
    (altered_leg, Kind.ALTERED_CREDIT_LEG, lambda w: w.paid.leg),
    (altered_transfer, Kind.ALTERED_TRANSFER, lambda w: w.paid.transfer),
    (altered_date, Kind.ALTERED_TRANSFER, lambda w: w.paid.transfer),
    (altered_on_acceptance, Kind.ALTERED_OUTCOME, lambda w: w.paid.accepted),
    (altered_dead_letter, Kind.ALTERED_OUTCOME, lambda w: w.refused[1]),
    (decline_of_another, Kind.ALTERED_POSTING, lambda w: w.declined.debit),
    (orphan, Kind.ORPHAN_POSTING, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (orphan_credit, Kind.ORPHAN_CREDIT, lambda w: w.declined.raw),
    (leg_missing, Kind.TORN_CREDIT_LEG, lambda w: w.paid.debit),
    (leg_twice, Kind.DUPLICATE_CREDIT_LEG, lambda w: end(w, catalogue.LEDGER_TRANSFERS, AWAY)),
    (leg_without_debit, Kind.ORPHAN_CREDIT_LEG, lambda w: end(w, catalogue.LEDGER_TRANSFERS, AWAY)),
    (changelog_behind, Kind.TORN_CHANGELOG, lambda w: w.last.debit),
    (changelog_without_account, Kind.TORN_CHANGELOG, lambda w: w.paid.debit),
    (changelog_without_account, Kind.BALANCE_DIFFERS, lambda _: f"{catalogue.LEDGER_BALANCES}:{HOME}"),
    (unbalanced, Kind.UNBALANCED, lambda w: w.paid.credit),
    (unbalanced, Kind.DRIFT, lambda _: catalogue.LEDGER_POSTINGS),
    (unbalanced_by_currency, Kind.UNBALANCED, lambda w: w.paid.credit),
    (foreign_account, Kind.FOREIGN_ACCOUNT, lambda w: w.paid.credit),
    (posted_elsewhere, Kind.WRONG_PARTITION, lambda _: f"{catalogue.LEDGER_POSTINGS}:{ELSEWHERE}:9000"),
    (in_two_outcomes, Kind.TWO_OUTCOMES, lambda w: end(w, catalogue.PAYMENTS_DEAD_LETTER, HOME)),
    (in_no_outcome, Kind.NO_OUTCOME, lambda w: w.refused[0]),
    (raw_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.accepted),
    (accepted_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.transfer),
    (transfer_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.debit),
    (leg_source_aborted, Kind.SOURCE_MISSING, lambda w: w.paid.leg),
    (transfer_twice, Kind.DUPLICATE_TRANSFER, lambda w: end(w, catalogue.LEDGER_TRANSFERS, HOME)),
    (wrong_origin, Kind.ORIGIN_MISMATCH, lambda w: w.paid.debit),
    (dedup_without_first, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (dedup_of_another, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (dedup_of_other_content, Kind.WRONG_FIRST, lambda w: w.repeated[1]),
    (accepted_twice, Kind.ACCEPTED_TWICE, lambda w: end(w, catalogue.PAYMENTS_ACCEPTED, HOME)),
    (skipped_by_ingest, Kind.SKIPPED, lambda w: end(w, catalogue.PAYMENTS_RAW, 0)),
    (ahead_of_ingest, Kind.AHEAD, lambda w: w.last.raw),
    (ahead_of_transform, Kind.AHEAD, lambda w: w.last.accepted),
    (ahead_of_ledger, Kind.AHEAD, lambda w: w.last.transfer),
    (skipped_by_transform, Kind.SKIPPED, lambda w: w.last.accepted),
    (skipped_by_ledger, Kind.SKIPPED, lambda w: w.last.leg),
    (skipped_by_ledger, Kind.CREDIT_MISSING, lambda w: w.last.raw),
    (reversed_twice, Kind.WRONG_REVERSAL, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (reversed_in_part, Kind.WRONG_REVERSAL, lambda w: w.reversed.debit),
    (account_event_twice, Kind.DUPLICATE_ACCOUNT_EVENT, lambda w: end(w, catalogue.LEDGER_POSTINGS, HOME)),
    (account_event_altered, Kind.ALTERED_POSTING, lambda w: w.opened[1]),
    (account_event_altered, Kind.TERMS_DIFFER, lambda w: last_state(w, ALICE)),
    (undecodable, Kind.UNREADABLE, lambda w: w.paid.debit),
]


def end(world: World, topic: str, partition: int) -> Coordinates:
    """The coordinates of a partition's last record."""
    return Coordinates(topic, partition, world.logs[topic, partition][-1].offset)


def last_state(world: World, account: str) -> Coordinates:
    """The coordinates of an account's last record in the changelog."""
    partition = partition_for(account)
    records = world.logs[catalogue.LEDGER_BALANCES, partition]
    offset = max(record.offset for record in records if record.key == b"account/" + account.encode())
    return Coordinates(catalogue.LEDGER_BALANCES, partition, offset)


@pytest.mark.parametrize(
    ("plant", "kind", "where"), PLANTED, ids=[f"{plant.__name__}-{kind}" for plant, kind, _ in PLANTED]
)
def test_planted_error_is_found(plant: Callable[[Clean], None], kind: Kind, where: Callable[[Clean], object]) -> None:
    world = Clean()
    before = World.audit(world)
    assert before.verdict == "pass"
    plant(world)
    verdict = world.audit()
    assert (kind.value, str(where(world))) in found(verdict)
    assert verdict.verdict == "fail"
    assert verdict.kinds[kind] >= 1
    if INVARIANT_OF[kind] != BANK:
        assert verdict.invariants[INVARIANT_OF[kind]].result == "fail"


def test_every_kind_is_planted_somewhere() -> None:
    assert {kind for _, kind, _ in PLANTED} | {Kind.BANK_DIFFERS} == set(Kind)


@pytest.mark.parametrize(
    ("plant", "figures"),
    [
        (lost, (1, 0, 0)),
        (two_debits, (0, 1, 0)),
        (two_credits, (0, 1, 0)),
        (debit_after_decline, (0, 1, 1)),
        (leg_missing, (0, 0, 1)),
        (changelog_behind, (0, 0, 1)),
        (changelog_without_account, (0, 0, 5)),
    ],
)
def test_lost_duplicated_and_torn_are_counted(plant: Callable[[Clean], None], figures: tuple[int, int, int]) -> None:
    world = Clean()
    plant(world)
    verdict = world.audit()
    assert (verdict.lost, verdict.duplicated, verdict.torn) == figures


def test_drift_is_counted_over_currencies() -> None:
    world = Clean()
    unbalanced_by_currency(world)
    assert world.audit().drift_minor == 2500 + 2500


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
    assert (Kind.BANK_DIFFERS.value, f"{catalogue.LEDGER_BALANCES}:{partition_for('dave')}") in found(verdict)


def test_bank_balance_withdrawn_is_not_compared() -> None:
    world = Clean()
    world.expect("dave", 500)
    world.append(catalogue.REFERENCE_BALANCES, partition_for("dave"), None, key=b"dave")
    assert world.audit().accounts == 1


def test_identity_may_come_again_outside_the_window() -> None:
    world = Clean()
    for number in range(3):
        world.pay(f"more-{number}", ALICE, BOB, 1)
    world.pay("p6", ALICE, BOB, 4000)
    world.expect(BOB, 7500 + 3 + 4000)
    assert world.audit(identity_window=3).verdict == "pass"
    assert world.audit(identity_window=4).kinds == {Kind.ACCEPTED_TWICE: 1}


def test_older_schema_version_is_no_alteration() -> None:
    world = Clean()
    value = b'{"schema_version":1,"payment_id":"p2","account_from":"alice","account_to":"bob","amount_minor":2500}'
    world.change(world.paid.raw, value)
    world.change(world.repeated[0], value)
    assert world.audit().verdict == "pass"


def test_account_event_that_changes_nothing_needs_no_posting() -> None:
    world = Clean()
    at = world.append(catalogue.LEDGER_TRANSFERS, HOME, encode_transfer(AccountOpened(ALICE, None)))
    world.committed["ledger"][HOME] = at.offset + 1
    assert world.audit().verdict == "pass"


def test_violations_are_counted_beyond_those_kept() -> None:
    audit = Audit(violations_kept=2)
    world = World()
    for number in range(5):
        world.raw(b"%d" % number, 0)
    audit.feed(catalogue.PAYMENTS_RAW, 0, world.logs[catalogue.PAYMENTS_RAW, 0])
    verdict = audit.finish({})
    assert (len(verdict.violations), verdict.violations_total) == (2, 5)


def test_topics_are_fed_in_order() -> None:
    audit = Audit()
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
