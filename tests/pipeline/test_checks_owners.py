"""Clients at each hop, and openings of accounts: what is altered is found where it is, what is right is no break."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events import catalogue
from shared.events.headers import SUBMITTED_BY
from shared.events.transfers import AccountOpened
from spark import decisions, totals
from spark.checks import intake, ledger
from spark.night import Checked, Night
from tests import planted_owners as owners
from tests import wrong_decisions
from tests.pipeline.landed import night_of
from tests.pipeline.nights import found, kept, manifest, night
from tests.planted import ALICE, BOB, HOME, Clean
from tests.planted_owners import ACME, OTHER, decide_all_kinds, former, own, submitted
from tests.tiers import full
from tests.world import end

Break = tuple[str, str, str]
OUTCOMES, TRANSFERS, POSTINGS = "raw:outcomes", "accepted:transfers", "transfers:postings"


def every(now: Night) -> list[Break]:
    """Breaks of all links of payments, and of the decisions."""
    checks: tuple[Callable[[Night], Checked], ...] = (
        intake.check_ingest,
        intake.check_transform,
        ledger.check,
        decisions.check,
    )
    return sorted(one for check in checks for one in found(check(now)))


ALTERED: tuple[tuple[Callable[[Clean], None], Callable[[Night], Checked], str, str, Callable[[Clean], object]], ...] = (
    (owners.client_altered_on_acceptance, intake.check_ingest, "amount", OUTCOMES, lambda w: w.paid.accepted),
    (owners.client_altered_on_a_dead_letter, intake.check_ingest, "amount", OUTCOMES, lambda w: w.refused[1]),
    (owners.client_altered_by_transform, intake.check_transform, "amount", TRANSFERS, lambda w: w.paid.transfer),
    (owners.owner_altered_by_transform, intake.check_transform, "amount", TRANSFERS, wrong_decisions.transfer),
    (owners.client_altered_by_the_ledger, ledger.check, "amount", POSTINGS, lambda w: w.paid.debit),
    (owners.client_dropped_by_the_ledger, ledger.check, "amount", POSTINGS, lambda w: w.paid.debit),
    (owners.client_on_a_credit, ledger.check, "amount", POSTINGS, lambda w: w.paid.credit),
    (owners.client_altered_on_a_decline, ledger.check, "amount", POSTINGS, lambda w: w.declined.debit),
    (owners.opening_without_an_outcome, ledger.check, "missing", POSTINGS, lambda w: w.opened[0]),
    (owners.opening_with_two_outcomes, ledger.check, "duplicate", POSTINGS, wrong_decisions.posted),
    (owners.opening_done_and_declined, ledger.check, "duplicate", POSTINGS, wrong_decisions.posted),
)


@full
@pytest.mark.parametrize(("plant", "check", "kind", "name", "where"), ALTERED, ids=[one[0].__name__ for one in ALTERED])
def test_what_is_altered_is_found_where_it_is(
    spark: SparkSession,
    plant: Callable[[Clean], None],
    check: Callable[[Night], Checked],
    kind: str,
    name: str,
    where: Callable[[Clean], object],
) -> None:
    world = Clean()
    plant(world)
    assert found(check(night(spark, world))) == [(kind, name, str(where(world)))]


@full
def test_right_decisions_on_ownership_are_no_breaks(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = Clean()
    decide_all_kinds(world)
    assert every(night_of(spark, world, tmp_path_factory.mktemp("records"))) == []


@full
def test_records_of_former_versions_pass_below_the_offsets_of_ownership(spark: SparkSession) -> None:
    world = former()
    assert every(night(spark, world)) == []
    owners.declined_as_unauthorised(world)
    assert every(night(spark, world)) == [("decision", "cover", str(wrong_decisions.posted(world)))]


@full
def test_a_former_version_opened_an_account_where_there_was_no_payment(spark: SparkSession) -> None:
    world = former()
    owners.enforced_without_payments(world)
    assert every(night(spark, world)) == []
    late = ("decision", "cover", str(owners.opened_by_a_former_ledger_too_late(world)))
    assert every(night(spark, world)) == [late]


@full
def test_a_former_version_opened_no_account_by_a_payment(spark: SparkSession) -> None:
    world = Clean(raw_from=1)
    owners.opened_without_a_version(world)
    assert every(night(spark, world)) == [("decision", "cover", str(wrong_decisions.posted(world)))]


@full
def test_a_dead_letter_of_a_former_version_may_name_no_client(spark: SparkSession) -> None:
    world = Clean()
    log = world.logs[world.refused[1].topic, world.refused[1].partition]
    log[:] = [one._replace(headers=tuple(pair for pair in one.headers if pair[0] != SUBMITTED_BY)) for one in log]
    assert found(intake.check_ingest(night(spark, world))) == []


@full
def test_an_account_without_its_record_of_ledger_accounts_is_a_break_until_it_comes(spark: SparkSession) -> None:
    world = Clean()
    own(world)
    at = owners.last_listed(world)
    world.remove(at)
    opened = next(
        record
        for record in reversed(world.logs[catalogue.LEDGER_POSTINGS, HOME])
        if b"account_opened" in (record.value or b"")
    )
    missing = ("decision", "accounts", f"{catalogue.LEDGER_POSTINGS}:{HOME}:{opened.offset}")
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for expected in ([missing], [missing], []):
        checked = decisions.check(night(spark, world, cut, carried))
        assert found(checked) == expected
        carried = kept({**checked.carry, **totals.totals(night(spark, world, cut, carried)).carry})
        if cut.sequence == 2:
            world.restore(at)
        cut = manifest(world, previous=cut)


@full
def test_owners_and_their_offsets_are_known_from_the_run_before(spark: SparkSession) -> None:
    world = Clean()
    account = own(world)
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept(
        {**intake.check_ingest(before).carry, **decisions.check(before).carry, **totals.totals(before).carry}
    )
    with submitted(world, ACME):
        world.pay("right", account, BOB, 1)
        world.open("again", account, expected_version=1)
        world.open("stale", account, expected_version=7)
    stale = wrong_decisions.posted(world)
    with submitted(world, OTHER):
        wrong = world.pay("wrong", account, BOB, 1).debit
    now = night(spark, world, manifest(world, previous=first), carried)
    assert every(now) == sorted(("decision", "cover", str(at)) for at in (stale, wrong))


@full
def test_a_command_without_an_outcome_changed_nothing_and_was_not_stale(spark: SparkSession) -> None:
    world = Clean()
    account = own(world)
    orders = [
        (AccountOpened(account, 0, "acme"), True),
        (AccountOpened(account, 0, "acme", expected_version=1), True),
        (AccountOpened(account, 0, "acme", expected_version=2), False),
        (AccountOpened(account, 0, "other"), False),
        (AccountOpened(ALICE, None, "other"), False),
    ]
    terms = dict(world.terms)
    missing = []
    for event, right in orders:
        at, posted = world.account_event(event)
        world.remove(posted)
        world.terms = dict(terms)
        missing += [] if right else [("missing", "terms", str(at))]
    assert found(ledger.check(night(spark, world))) == sorted(missing)


@full
def test_an_accounts_record_above_the_cut_is_waited_for(spark: SparkSession) -> None:
    world = Clean()
    own(world)
    listed = owners.last_listed(world)
    log = (listed.topic, listed.partition)
    cut = manifest(world, stops={log: listed.offset}, highs={log: listed.offset + 2}, settled=False)
    assert [one for one in found(decisions.check(night(spark, world, cut))) if one[1] == "accounts"] == []
    assert end(world, *log) == listed
