"""Wrong decisions: each is found where it is, and nothing else."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    LEDGER_ACCOUNTS,
    LEDGER_BALANCES,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
)
from shared.events.headers import REPAIR, Coordinates
from shared.events.payments import SCHEMA_VERSION, Payment
from shared.events.postings import encode_terms
from shared.events.reference import Fee
from shared.events.transfers import AccountClosed, AccountOpened, PricedBy
from spark import decisions, totals
from spark.checks import intake
from spark.decisions.reference import STALE_MS
from spark.lake import Bounds
from spark.manifest import Manifest, Settings, seal
from spark.night import Checked, Night, frame
from spark.schemas import TABLES
from tests import planted_decisions as planted
from tests import planted_owners as owners
from tests.pipeline.landed import night_of
from tests.pipeline.nights import ends, found, kept, manifest, night, rows_of
from tests.planted import ALICE, AWAY, BOB, ELSEWHERE, FILE, HOME, Clean, posted_elsewhere
from tests.tiers import full, mostly_full
from tests.world import AT_MS
from tests.wrong_decisions import ALL, QUICK, Wrong

Break = tuple[str, str, str]
"""Kind, comparison, and `topic:partition:offset`."""


def test_right_decisions_are_no_breaks(spark: SparkSession) -> None:
    checked = decisions.check(night(spark, Clean()))
    assert checked.breaks is None
    assert checked.figures == {"decisions_open": 0}


@pytest.fixture(scope="module")
def judged(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Counter[Break], dict[str, Break]]:
    """What one check found over the wrong decisions of all rows that run, and what each row expects."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    rows = [item for item in items if item.function is test_a_wrong_decision_is_found]
    world, expected = Clean(), dict[str, Break]()
    planted_here = [cast("Wrong", item.callspec.params["wrong"]) for item in rows]
    for number, wrong in enumerate(planted_here):
        if number:
            world.begin_scene(number)
        wrong.plant(world)
        expected[wrong.name] = ("decision", wrong.check, str(wrong.where(world)))
        if wrong.plant is planted.rate_of_another_record:
            expected["a transfer with that rate"] = ("decision", wrong.check, str(world.converted.transfer))
    # Only decoding gives the rows of the changelog
    decoded = any(check == "terms" for _, check, _ in expected.values())
    now = night_of(spark, world, tmp_path_factory.mktemp("records")) if decoded else night(spark, world)
    return Counter(found(decisions.check(now))), expected


@pytest.mark.parametrize(
    "wrong", mostly_full(ALL, [one for one in ALL if one.plant in QUICK]), ids=lambda wrong: wrong.plant.__name__
)
def test_a_wrong_decision_is_found(judged: tuple[Counter[Break], dict[str, Break]], wrong: Wrong) -> None:
    breaks, expected = judged
    assert breaks[expected[wrong.name]] == 1


def test_nothing_but_wrong_decisions_is_found(judged: tuple[Counter[Break], dict[str, Break]]) -> None:
    breaks, expected = judged
    assert breaks == Counter(expected.values())


@full
def test_a_version_may_be_used_a_minute_after_it_was_superseded(spark: SparkSession) -> None:
    world = Clean()
    at = world.refer(planted.FEES, "CZK", Fee(fixed_minor=30))
    world.refer(planted.FEES, "CZK", Fee(fixed_minor=31))
    world.now_ms += STALE_MS
    trail = world.pay("w", ALICE, BOB, 1000, fee_minor=30)
    planted.change_transfer(world, trail, priced_by=PricedBy(at, None))
    assert [one for one in found(decisions.check(night(spark, world))) if one[1] == "prices"] == []


@full
def test_a_wrong_rate_is_found_in_each_transfer_that_names_it(spark: SparkSession) -> None:
    world = Clean()
    planted.rate_of_another_record(world)
    assert len(found(decisions.check(night(spark, world)))) == len([world.converted, "w"])


@full
def test_a_conflict_is_right_only_where_an_earlier_payment_says_something_else(spark: SparkSession) -> None:
    world = Clean()
    planted.refuse_payment(world, "identity_conflict", payment_id="p2")
    assert found(decisions.check(night(spark, world))) == []
    planted.refused_as_a_conflict_of_equal_content(world)
    planted.refuse_payment(world, "identity_conflict")
    letters = world.logs["payments.dead-letter", 3]
    assert found(decisions.check(night(spark, world))) == [
        ("decision", "refusals", f"payments.dead-letter:3:{letter.offset}") for letter in letters[-2:]
    ]


@full
@pytest.mark.parametrize("comes", [True, False])
def test_a_conflict_with_a_payment_above_the_cut_is_right(spark: SparkSession, comes: bool) -> None:
    """Where its record never comes, the payment is missing, and the refusals were right."""
    world = Clean()
    accepted = (PAYMENTS_ACCEPTED, HOME)
    stops = {accepted: ends(world)[accepted]}
    raw, hidden = world._accept(Payment("p9", ALICE, BOB, 10, "CZK", SCHEMA_VERSION))
    highs = {accepted: ends(world)[accepted]}
    cut, carried = None, dict[str, DataFrame]()
    for _ in range(2):
        planted.refuse_payment(world, "identity_conflict", payment_id="p9")
        planted.refuse_payment(world, "identity_conflict")
        wrong = world.logs[PAYMENTS_DEAD_LETTER, HOME][-1]
        cut = manifest(world, stops=stops, highs=highs, settled=False, previous=cut)
        now = night(spark, world, cut, carried)
        of_ingest, of_decisions = intake.check_ingest(now), decisions.check(now)
        assert (found(of_ingest), of_ingest.in_flight["ingest"]) == ([], 1)
        assert found(of_decisions) == [("decision", "refusals", f"{wrong.topic}:{HOME}:{wrong.offset}")]
        carried = kept({**of_ingest.carry, **of_decisions.carry})
    if not comes:
        world.remove(hidden)
    later = night(spark, world, manifest(world, previous=cut), carried)
    missing = [] if comes else [("missing", "raw:outcomes", str(raw))]
    assert (found(intake.check_ingest(later)), found(decisions.check(later))) == (missing, [])


@full
@pytest.mark.parametrize(
    ("plant", "number"),
    [
        (planted.booked_beyond_the_limit, AWAY),
        (planted.declined_with_cover, AWAY),
        (planted.declined_without_a_limit, HOME),
    ],
    ids=["booked_beyond_the_limit", "declined_with_cover", "declined_without_a_limit"],
)
def test_cover_is_judged_with_what_the_run_before_left(
    spark: SparkSession, plant: Callable[[Clean], None], number: int
) -> None:
    world = Clean()
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept({**decisions.check(before).carry, **totals.totals(before).carry})
    plant(world)
    later = night(spark, world, manifest(world, previous=first), carried)
    last = world.logs["ledger.postings", number][-1]
    assert found(decisions.check(later)) == [("decision", "cover", f"ledger.postings:{number}:{last.offset}")]


@full
def test_earlier_records_are_read_as_far_as_the_services_remember(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept({**decisions.check(before).carry, **totals.totals(before).carry})
    for name in (*(f"early-{number}" for number in range(6)), "old"):
        world.pay(name, ALICE, BOB, 1)
    world.reverse("undo", ALICE, "old")
    world.pay("new", ALICE, BOB, 1)
    for number in range(5):  # on the partition of their creditor, where none of them is remembered
        world.pay(f"credit-{number}", BOB, ALICE, 1)
    second = manifest(world, previous=first)
    planted.decline_reversal(world, "old", "already_reversed")
    planted.refuse_payment(world, "identity_conflict", payment_id="old")
    right = world.logs["payments.dead-letter", HOME][-1]
    planted.decline_reversal(world, "new", "already_reversed")
    wrong = world.logs["ledger.postings", HOME][-1]
    settings = Settings(identity_window=4, reversal_window=2)
    cut = seal(msgspec.structs.replace(manifest(world, previous=second), settings=settings))
    asked: list[tuple[str, int]] = []
    now = night(spark, world, cut, carried)

    def history(table: str, bounds: Bounds, /) -> DataFrame:
        asked.append((table, bounds[HOME][0]))
        return now.history(table, bounds)

    checked = decisions.check(dataclasses.replace(now, history=history))
    declined = ("decision", "reversals declined", f"ledger.postings:{HOME}:{wrong.offset}")
    assert found(checked) == [declined]
    assert {table for table, begin in asked} == {"postings", "payments", "reversals", "openings", "ownership"}
    assert all(begin > 0 for table, begin in asked if table != "ownership")  # no run left it here
    forgotten = seal(msgspec.structs.replace(cut, settings=Settings(identity_window=1)))
    refused = ("decision", "refusals", f"payments.dead-letter:{HOME}:{right.offset}")
    assert found(decisions.check(night(spark, world, forgotten, carried))) == [refused, declined]


@full
def test_a_decision_by_a_lost_posting_is_a_break_until_a_repair_writes_it(spark: SparkSession) -> None:
    world = Clean()
    at = world.pay("in", ALICE, BOB, 500_000).credit
    world.pay("out", BOB, ALICE, 507_500)
    world.remove(at)
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for expected in (1, 1, 0):
        now = night(spark, world, cut, carried)
        checked = decisions.check(now)
        assert found(checked) == [("decision", "cover", "ledger.postings:0:16")] * expected
        carried = kept({**checked.carry, **totals.totals(now).carry})
        if cut.sequence == 2:
            world.restore(at)
        cut = manifest(world, previous=cut)


@full
def test_a_repaired_debit_explains_no_debit_beyond_cover(spark: SparkSession) -> None:
    """It takes from the account, whether the ledger knew it or not."""
    world = Clean()
    account = owners.own(world)
    with owners.submitted(world, owners.ACME):
        lost = world.pay("lost", account, BOB, 5).debit
        wrong = world.pay("w", account, BOB, 10_001).debit
    world.remove(lost)
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for _ in range(3):
        checked, carried = nightly(spark, world, cut, carried)
        assert found(checked) == [("decision", "cover", str(wrong))]
        if cut.sequence == 1:
            repair(world, lost)
        cut = manifest(world, previous=cut)
    assert found(decisions.check(night(spark, world))) == [("decision", "cover", str(wrong))]


def nightly(
    spark: SparkSession, world: Clean, cut: Manifest, carried: dict[str, DataFrame]
) -> tuple[Checked, dict[str, DataFrame]]:
    """Take the decisions of a cut again; returns what the next run needs as well."""
    now = night(spark, world, cut, carried)
    checked = decisions.check(now)
    return checked, kept({**checked.carry, **totals.totals(now).carry})


def repair(world: Clean, removed: Coordinates) -> Coordinates:
    """Write a removed record again as `once repair` does."""
    at = world.restore(removed)
    world.add_header(at, REPAIR, "repair-1:0")
    return at


@full
@pytest.mark.parametrize("cuts", [{"repaired"}, {"spent", "repaired"}, {"lost", "spent", "repaired"}], ids=len)
@pytest.mark.parametrize("since", [None, "closed", "given away"])
def test_a_repaired_debit_is_no_break_whatever_came_since(
    spark: SparkSession, since: str | None, cuts: set[str]
) -> None:
    """Its posting was lost with the ledger's state, so the ledger booked another debit of the same money."""
    world = Clean()
    account = owners.own(world)
    closed, given = AccountClosed(account), AccountOpened(account, 0, "other")
    cut: Manifest | None = None
    carried: dict[str, DataFrame] = {}
    opened, breaks, wrong = 0, list[Break](), ""
    for step in ("lost", "spent", "repaired"):
        with owners.submitted(world, owners.ACME):
            if step == "lost":
                lost = world.pay("lost", account, BOB, 10_000).debit
                world.remove(lost)
            elif step == "spent":
                world.pay("again", account, BOB, 10_000)
                if since is not None:
                    world.account_event(closed if since == "closed" else given)
            else:
                repair(world, lost)
                wrong = str(world.pay("wrong", account, BOB, 1).debit)
        if step in cuts:
            cut = manifest(world, previous=cut)
            checked, carried = nightly(spark, world, cut, carried)
            opened, breaks = opened + checked.figures["decisions_open"], breaks + found(checked)
    assert (breaks, opened) == ([("decision", "cover", wrong)], 1)


@full
def test_a_repair_decides_by_the_terms_of_its_time(spark: SparkSession) -> None:
    world = Clean()
    account = owners.own(world)
    credited = world.pay("c", ALICE, account, 5, to_suspense=True).credit
    with owners.submitted(world, owners.ACME):
        declined = world.decline("d", account, BOB, because="debtor_closed").debit
    for at in (credited, declined):
        world.remove(at)
    world.account_event(AccountClosed(account))
    for at in (credited, declined):
        repair(world, at)
    checked = decisions.check(night(spark, world))
    assert (found(checked), checked.figures) == ([], {"decisions_open": 2})


@full
@pytest.mark.parametrize("cuts", [set(), {"changed"}, {"changed", "repaired"}], ids=len)
def test_terms_that_a_repair_wrote_replace_later_ones(spark: SparkSession, cuts: set[str]) -> None:
    world = Clean()
    account = owners.own(world)
    before = world.terms[account]
    source, lost = world.account_event(AccountOpened(account, 5, "acme"))
    terms = world.terms[account]
    for at in (lost, owners.last_listed(world)):
        world.remove(at)
    world.terms[account] = before
    changed, _ = world.account_event(AccountOpened(account, 7, "acme"))
    cut: Manifest | None = None
    carried: dict[str, DataFrame] = {}
    breaks: list[Break] = []
    for step in ("changed", "repaired", "spent"):
        if step == "repaired":
            owners.change_event(world, repair(world, lost), version=3)
            world.terms[account] = msgspec.structs.replace(terms, version=3)
            listed = encode_terms(world.terms[account])
            world.append(LEDGER_ACCOUNTS, HOME, listed, account.encode(), origin=source, source=source)
        elif step == "spent":
            with owners.submitted(world, owners.ACME):
                world.pay("right", account, BOB, 10_000 + 5)
                wrong = world.pay("wrong", account, BOB, 1).debit
            world.account_event(AccountOpened(account, 9, "acme"))
        if step in {*cuts, "spent"}:
            cut = manifest(world, previous=cut)
            now = night(spark, world, cut, carried)
            if not cuts:
                now = with_state(now, account, changed, overdraft_minor=7, version=2)
            checked = decisions.check(now)
            breaks += found(checked)
            carried = kept({**checked.carry, **totals.totals(now).carry})
    assert breaks == [("decision", "cover", str(wrong))]


def with_state(now: Night, account: str, source: Coordinates, **changes: object) -> Night:
    """The same input, and the state of an account of acme after a transaction that ended with a source."""
    state = {"topic": LEDGER_BALANCES, "partition": source.partition, "offset": 0, "account": account}
    of = {"source_topic": source.topic, "source_partition": source.partition, "source_offset": source.offset}
    terms = {"closed": False, "overdraft_minor": 0, "owner": "acme", "version": 1, "deleted": False, **changes}
    rows = frame(now.spark, TABLES["account_states"].schema, [{**state, **of, **terms}])
    new = now.new
    return dataclasses.replace(now, new=lambda table: rows if table == "account_states" else new(table))


@full
@pytest.mark.parametrize("late", ["a decline", "a payment", "a state"])
def test_a_strangers_debit_stays_a_break_whatever_comes_late(spark: SparkSession, late: str) -> None:
    """Only an account event that came before it could explain it: money changes no owner, the others change nothing."""
    world = Clean()
    account = owners.own(world)
    with owners.submitted(world, owners.ACME):
        declined = world.decline("declined", account, BOB)
    before = declined if late == "a decline" else world.pay("before", ALICE, account, 5)
    with owners.submitted(world, owners.OTHER):
        wrong = world.pay("w", account, BOB, 1).debit
    posted = before.debit if late == "a decline" else before.credit
    if late != "a state":
        world.remove(posted)
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for _ in range(3):
        now = night(spark, world, cut, carried)
        if cut.sequence == 2 and late == "a state":
            now = with_state(now, account, before.leg)
        checked = decisions.check(now)
        assert found(checked) == [("decision", "cover", str(wrong))]
        carried = kept({**checked.carry, **totals.totals(now).carry})
        if cut.sequence == 1 and late != "a state":
            world.restore(posted)
        cut = manifest(world, previous=cut)


@full
def test_requests_above_the_cut_are_in_flight_until_they_are_seen_or_late(spark: SparkSession) -> None:
    world = Clean()
    request = world.last_receipt.request
    log = (request.topic, request.partition)
    stops = {log: request.offset}
    first = manifest(world, stops=stops, highs={log: request.offset + 2}, settled=False)
    checked = decisions.check(night(spark, world, first))
    assert found(checked) == []
    assert checked.in_flight == {"decisions": 1}
    carried = kept(checked.carry)
    seen = decisions.check(night(spark, world, manifest(world, previous=first), carried))
    assert (found(seen), seen.in_flight) == ([], {"decisions": 0})
    world.remove(request)
    lost = decisions.check(night(spark, world, manifest(world, previous=first), carried))
    assert found(lost) == [("decision", "subscribed", str(world.last.debit))]


@full
def test_a_lost_request_stays_a_break_when_all_that_shows_it_is_gone(spark: SparkSession) -> None:
    """The subscription that asked for it was superseded and compacted away, later requests expired unread."""
    world = Clean()
    planted.request_and_result_lost(world)
    requests = (EFFECTS_REQUESTS, HOME)
    carried: dict[str, DataFrame] = {}
    cut, details = None, set()
    for age_ms in (0, *[Settings().superseded_kept_ms + 10 * STALE_MS] * 3):
        world._next[requests] += 2
        beginnings = {requests: 0 if cut is None else world._next[requests]}
        pinned = manifest(world, previous=cut, beginnings=beginnings)
        cut = seal(msgspec.structs.replace(pinned, taken_at_ms=AT_MS + age_ms))
        now = night(spark, world, cut, carried)
        checked = decisions.check(now)
        assert found(checked) == [("decision", "subscribed", str(world.last.debit))]
        details |= {row["detail"] for row in rows_of(checked)}
        carried = kept({**checked.carry, **totals.totals(now).carry})
    assert len(details) == 1  # an explanation is for one detail


@full
def test_a_lost_request_is_found_where_all_requests_before_it_have_expired(spark: SparkSession) -> None:
    """They were landed in time. The partition had no request since."""
    world = Clean()
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept({**decisions.check(before).carry, **totals.totals(before).carry})
    paid = world.pay("later", ALICE, BOB, 10)
    lost = world.notify(paid.debit, "receipt", FILE)
    for at in (lost.request, lost.result):
        world.remove(at)
    beginnings = {(EFFECTS_REQUESTS, number): of.end for number, of in first.topics[EFFECTS_REQUESTS].items()}
    cut = manifest(world, previous=first, beginnings=beginnings)
    assert found(decisions.check(night(spark, world, cut, carried))) == [("decision", "subscribed", str(paid.debit))]


def test_a_posting_on_another_partition_than_its_accounts_is_found(spark: SparkSession) -> None:
    world = Clean()
    posted_elsewhere(world)
    record = world.logs["ledger.postings", ELSEWHERE][-1]
    stops = {("ledger.postings", ELSEWHERE): record.offset + 1}
    assert ("decision", "homes", f"ledger.postings:{ELSEWHERE}:{record.offset}") in found(
        decisions.check(night(spark, world, manifest(world, stops=stops)))
    )
