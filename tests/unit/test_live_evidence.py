"""Evidence for and against invariants: rest, producer epochs, reconciliations."""

import pytest

from services.balances.dashboard.evidence import (
    EPOCH_KEPT_MS,
    EPOCHS,
    REST_S,
    Fencing,
    Rest,
    fencing_after,
    rest_after,
)
from services.balances.dashboard.observed import Answer, Instance, Seen
from shared.telemetry import catalogue
from tests.live import AT_MS, BOOKS, Series, drained, instance, seen, view, with_instance

LAST = 2 * REST_S


def rests(*rounds: Seen) -> bool:
    rest = Rest()
    for one in rounds:
        rest = rest_after(rest, one)
    return rest.lasted(rounds[-1].at_s)


def test_rest_is_when_nothing_moved_for_a_while() -> None:
    assert rests(seen(0.0), seen(REST_S))
    assert not rests(seen(0.0), seen(REST_S - 0.1))
    assert not rests(seen(0.0))


LAGGING = instance("ledger", {catalogue.RECORDS_LAG: {("ledger.transfers", "0"): 1.0}})


@pytest.mark.parametrize(
    "changes",
    [
        {"view": None},
        {"view": view(BOOKS, behind=1)},
        {"view": view(BOOKS, behind=None)},
        {"own": {"kafka": "not connected"}},
        {"instances": with_instance(seen(), LAGGING)},
        {"instances": with_instance(seen(), instance("ledger", None))},
        {"instances": with_instance(seen(), drained("ledger", answer=Answer.NOT_READY))},
        {"instances": with_instance(seen(), drained("ledger", answer=Answer.SILENT))},
        {"instances": tuple(one for one in seen().instances if one.watched.service != "ledger")},
    ],
)
def test_no_rest_while_an_instance_is_busy_or_silent(changes: dict[str, object]) -> None:
    assert not rests(seen(0.0, **changes), seen(LAST, **changes))
    assert rests(seen(0.0), seen(1.0, **changes), seen(2.0), seen(2.0 + REST_S))


def test_no_rest_while_a_transaction_is_open() -> None:
    ledger = drained("ledger")
    assert ledger.scrape is not None
    ledger.scrape[catalogue.OPEN_TRANSACTION_AGE.name]["ledger-ledger.transfers-0",] = 0.01  # type: ignore[index]
    open_ = with_instance(seen(), ledger)
    assert not rests(seen(0.0, instances=open_), seen(LAST, instances=open_))


def test_any_movement_restarts_the_rest() -> None:
    moved = with_instance(seen(), drained("ledger", consumed=1))
    assert not rests(seen(0.0), seen(LAST, instances=moved))
    assert rests(seen(0.0), seen(LAST, instances=moved), seen(LAST + REST_S, instances=moved))
    assert not rests(seen(0.0), seen(LAST, view=view(BOOKS, next_offset=11)))


def test_partitions_may_be_shared_among_instances() -> None:
    all_of_it = drained("ledger")
    idle = instance("ledger", {catalogue.RECORDS_LAG: {}}, port=9101)
    shared = with_instance(seen(), all_of_it, idle)
    assert rests(seen(0.0, instances=shared), seen(REST_S, instances=shared))


def member(port: int, committed: float, **epochs: float) -> Instance:
    series: Series = {
        catalogue.PRODUCER_EPOCH: {(name,): epoch for name, epoch in epochs.items()},
        catalogue.TRANSACTIONS: {("committed", "none"): committed, ("aborted", "stopped"): 99.0},
    }
    return instance("ledger", series, port=port)


def fenced(*rounds: list[Instance]) -> Fencing:
    fencing = Fencing()
    for number, instances in enumerate(rounds):
        fencing = fencing_after(fencing, instances, AT_MS + number)
    return fencing


def test_a_commit_of_an_instance_that_was_fenced_is_a_breach() -> None:
    successor = member(2, 1, a=2, b=2)
    fencing = fenced(
        [member(1, 10, a=1, b=1)], *[[member(1, 10, a=1, b=1), successor]] * 3, [member(1, 11, a=1, b=1), successor]
    )
    assert "committed although" in fencing.breach
    assert fencing.breach_ms == AT_MS + 4
    assert fencing_after(fencing, [successor], AT_MS + 9).breach, "a breach is never forgotten"


def test_commits_before_the_successor_are_not_a_breach() -> None:
    successor = member(2, 1, a=2)
    # In the first common round, the predecessor's answer may be older than the successor's
    assert not fenced(
        [member(1, 10, a=1), successor], [member(1, 15, a=1), successor], [member(1, 15, a=1), successor]
    ).breach


def test_an_instance_that_kept_a_producer_may_commit() -> None:
    successor = member(2, 1, a=2)
    rounds = [[member(1, 10.0 + number, a=1, b=1), successor] for number in range(5)]
    assert not fenced(*rounds).breach


def test_an_instance_that_takes_its_producers_back_may_commit() -> None:
    successor = member(2, 1, a=2)
    assert not fenced(
        *[[member(1, 10, a=1), successor]] * 3, [member(1, 12, a=3), successor], [member(1, 14, a=3), successor]
    ).breach


def test_a_new_process_at_the_same_address_begins_at_0() -> None:
    successor = member(2, 1, a=3)
    assert not fenced(*[[member(1, 10, a=1), successor]] * 3, *[[member(1, 0, a=2), successor]] * 2).breach


def test_after_the_last_epoch_comes_0() -> None:
    fencing = fenced([member(1, 10, a=EPOCHS - 1)], *[[member(1, 10.0 + number, a=0)] for number in range(4)])
    assert fencing.newest == {"a": 0}
    assert not fencing.breach


def test_epochs_before_a_long_pause_are_forgotten() -> None:
    """Epochs rise with each transaction: after half of all, the same instance would seem older than itself."""
    fencing = fenced([member(1, 10, a=5)])
    for number in range(4):
        later = AT_MS + EPOCH_KEPT_MS + 1 + number
        fencing = fencing_after(fencing, [member(1, 20_010.0 + number, a=5 + 20_000 + number)], later)
    assert fencing.newest == {"a": 20_008}
    assert (fencing.fenced, fencing.breach) == ({}, "")


def test_an_instance_without_an_answer_for_long_does_not_seem_older_than_itself() -> None:
    other = member(2, 10, b=1)
    fencing = fenced([member(1, 10, a=5), other])
    for at_ms in range(AT_MS, AT_MS + EPOCH_KEPT_MS + 2_000, 1_000):
        fencing = fencing_after(fencing, [other], at_ms)
    assert fencing.newest == {"b": 1}
    assert not fencing_after(fencing, [member(1, 20_010, a=20_005), other], AT_MS + EPOCH_KEPT_MS + 2_000).fenced


def test_an_old_producer_is_found_as_long_as_its_successor_answers() -> None:
    """However long ago the successor's epoch rose last."""
    old, successor = member(1, 10, a=1), member(2, 1, a=2)
    fencing = fenced([old, successor])
    for at_ms in range(AT_MS, AT_MS + 3 * EPOCH_KEPT_MS, EPOCH_KEPT_MS // 2):
        fencing = fencing_after(fencing, [old, successor], at_ms)
    assert fencing.newest == {"a": 2}
    assert fencing_after(fencing, [member(1, 11, a=1), successor], AT_MS + 3 * EPOCH_KEPT_MS).breach


def test_a_breach_outlasts_a_pause() -> None:
    breach = Fencing({"a": 2}, breach="committed", breach_ms=AT_MS, reported_ms={"a": AT_MS})
    after = fencing_after(breach, [member(1, 11, a=1)], AT_MS + EPOCH_KEPT_MS + 1)
    assert (after.newest, after.breach, after.breach_ms) == ({"a": 1}, "committed", AT_MS)
