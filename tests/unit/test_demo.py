"""The demonstration's plan, and its conditions for a pass."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.checkers.audit import Audit
from deploy.checkers.verdict import FAIL, Verdict
from deploy.demo.faults import EARLIEST, FLUSH, KILL, LATEST, SERVICES, Fault, Injected, due, plan
from deploy.demo.run import shortfalls
from deploy.drills.opinions import COMPARED, Reconciled, Viewed, differences, disagreements
from tests.partitions import PARTITIONS

PLANNED = plan(1)
HIT = [Injected(fault.action, fault.target, fault.watched, 1000, 900, 100) for fault in PLANNED]


def good() -> Verdict:
    """A verdict with the sample's figures."""
    empty = Audit({}, partitions=PARTITIONS).finish({})
    return msgspec.structs.replace(
        empty,
        verdict="pass",
        records_in=28_265,
        accepted=28_205,
        deduplicated=50,
        dead_lettered=10,
        postings=56_410,
        effects_requested=28_205,
        effects_delivered=28_205,
    )


@given(st.integers())
def test_each_service_and_one_broker_is_killed_and_redis_flushed_once_within_the_bounds(seed: int) -> None:
    faults = plan(seed)
    killed = [fault.target for fault in faults if fault.action == KILL]
    assert sorted(target for target in killed if not target.startswith("broker-")) == sorted(SERVICES)
    assert len(killed) == len(SERVICES) + 1
    assert [fault.target for fault in faults if fault.action == FLUSH] == ["redis"]
    assert all(EARLIEST <= fault.share <= LATEST for fault in faults)
    assert faults == sorted(faults, key=lambda fault: fault.share)
    assert plan(seed) == faults


def test_a_fault_is_due_from_its_share_on() -> None:
    fault = Fault(KILL, "ingest", "ingest", 0.5)
    assert [due(fault, loaded, 100) for loaded in (49, 50, 51)] == [False, True, True]


def test_nothing_is_missing_from_a_good_run() -> None:
    assert shortfalls(good(), HIT, PLANNED) == []


@pytest.mark.parametrize(
    "name",
    [
        "records_in",
        "accepted",
        "deduplicated",
        "dead_lettered",
        "postings",
        "declines",
        "effects_requested",
        "effects_delivered",
        "effects_duplicated",
        "effects_in_doubt",
        "effects_failed",
    ],
)
def test_a_wrong_figure_is_named(name: str) -> None:
    verdict = msgspec.structs.replace(good(), **{name: getattr(good(), name) + 1})
    assert [text.split()[0] for text in shortfalls(verdict, HIT, PLANNED)] == [name]


def test_a_failed_audit_is_reported() -> None:
    assert shortfalls(msgspec.structs.replace(good(), verdict=FAIL), HIT, PLANNED) != []


def test_a_kill_that_hit_nothing_is_not_a_pass() -> None:
    [missing] = shortfalls(good(), HIT[1:], PLANNED)
    assert HIT[0].target in missing


def alike(**other: int) -> Reconciled:
    """A clean reconciliation with the figures of `good`."""
    figures = {theirs: getattr(good(), ours) for ours, theirs in COMPARED.items()} | other
    return Reconciled("clean", 0, {"missing": 0, "torn": 0}, True, "manifest", figures, {"ledger": 0}, (), "balances")


def test_the_two_agree_when_every_figure_is_equal() -> None:
    assert disagreements(good(), alike()) == []


@pytest.mark.parametrize("name", COMPARED)
def test_a_figure_that_differs_between_the_two_is_named(name: str) -> None:
    [text] = disagreements(good(), alike(**{COMPARED[name]: -1}))
    assert text == f"{name} is {getattr(good(), name)} to the verifier and -1 to Spark"


def test_a_figure_that_spark_lacks_is_a_difference() -> None:
    [text] = disagreements(good(), msgspec.structs.replace(alike(), figures={**alike().figures, "accepted": None}))
    assert text.startswith("accepted is 28205 to the verifier")


def test_breaks_and_records_in_flight_are_not_a_pass() -> None:
    broken = msgspec.structs.replace(
        alike(),
        verdict="breaks",
        breaks=3,
        breaks_by_kind={"missing": 0, "torn": 3},
        in_flight={"ledger": 2, "ingest": 0},
    )
    assert disagreements(good(), broken) == [
        "the reconciliation found 3 breaks: 3 torn",
        "2 records were in flight to ledger",
    ]


def shown(**changes: object) -> Viewed:
    """A view with the figures of `good` and `alike`."""
    return msgspec.structs.replace(Viewed(0.0, "balances", {0: 7}, {}), **changes)


def test_a_view_with_the_same_balances_has_no_difference() -> None:
    verdict = msgspec.structs.replace(good(), balances_digest="balances")
    assert differences(shown(), verdict, alike()) == []


def test_each_party_that_the_view_differs_from_is_named() -> None:
    verdict = msgspec.structs.replace(good(), balances_digest="balances")
    found = differences(shown(balances="others"), verdict, alike())
    assert found == ["the view's balances are not those of the verifier", "the view's balances are not those of Spark"]
    assert differences(shown(), good(), alike()) == ["the view's balances are not those of the verifier"]
    [text] = differences(shown(currencies={"CZK": (1, 2)}), verdict, alike())
    assert text == "the view's totals are {'CZK': (1, 2)}, those of Spark {}"
