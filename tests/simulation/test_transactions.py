"""The model of a transaction coordinator's decisions, state by state."""

import pytest

from shared.kafka.client.batches import Marker
from tests.simulation.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)
from tests.simulation.transactions import (
    EPOCH_MAX,
    Decision,
    State,
    Transaction,
    add,
    complete,
    end,
    has,
    initialise,
    is_late,
)

IDLE = [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT]
ENDING = [State.PREPARE_COMMIT, State.PREPARE_ABORT]
ONE, OTHER = ("ledger.postings", 1), ("ledger.balances", 1)


def transaction(state: State, epoch: int = 3) -> Transaction:
    opened = state is State.ONGOING or state in ENDING
    return Transaction(7, epoch, 10_000, state, frozenset({ONE} if opened else ()), 5 if opened else -1)


def test_a_new_id_gets_a_producer_id() -> None:
    assert initialise(None, 10_000, 9) == Decision(NONE, Transaction(9, 0, 10_000))


@pytest.mark.parametrize("state", IDLE)
def test_the_next_owner_gets_the_next_epoch(state: State) -> None:
    assert initialise(transaction(state), 8_000, 9) == Decision(NONE, Transaction(7, 4, 8_000))


@pytest.mark.parametrize("state", IDLE)
def test_after_the_last_epoch_comes_another_producer_id(state: State) -> None:
    assert initialise(transaction(state, EPOCH_MAX), 8_000, 9) == Decision(NONE, Transaction(9, 0, 8_000))


def test_the_next_owner_waits_for_the_abort_of_an_open_transaction() -> None:
    code, fenced = initialise(transaction(State.ONGOING), 8_000, 9)
    assert fenced is not None
    assert (code, fenced.state, fenced.epoch, fenced.partitions) == (
        CONCURRENT_TRANSACTIONS,
        State.PREPARE_ABORT,
        4,
        frozenset({ONE}),
    )
    assert initialise(fenced, 8_000, 9) == Decision(CONCURRENT_TRANSACTIONS)
    assert initialise(complete(fenced), 8_000, 9) == Decision(NONE, Transaction(7, 5, 8_000))


@pytest.mark.parametrize("state", State)
def test_others_are_refused_in_every_state(state: State) -> None:
    known = transaction(state)
    for producer_id, epoch, code in (
        (8, 3, INVALID_PRODUCER_ID_MAPPING),
        (7, 2, PRODUCER_FENCED),
        (7, 4, PRODUCER_FENCED),
    ):
        assert add(known, producer_id, epoch, [ONE], 6) == Decision(code)
        assert end(known, producer_id, epoch, Marker.COMMIT) == Decision(code)
    assert add(None, 7, 3, [ONE], 6) == end(None, 7, 3, Marker.ABORT) == Decision(INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("state", IDLE)
def test_the_first_partition_opens_a_transaction(state: State) -> None:
    opened = Transaction(7, 3, 10_000, State.ONGOING, frozenset({OTHER}), 6)
    assert add(transaction(state), 7, 3, [OTHER], 6) == Decision(NONE, opened)


def test_partitions_are_added_once_and_do_not_prolong_it() -> None:
    known = transaction(State.ONGOING)
    assert add(known, 7, 3, [ONE], 6) == Decision(NONE)
    more = Transaction(7, 3, 10_000, State.ONGOING, frozenset({ONE, OTHER}), 5)
    assert add(known, 7, 3, [OTHER], 6) == Decision(NONE, more)


@pytest.mark.parametrize("state", ENDING)
def test_the_next_transaction_waits_for_the_markers(state: State) -> None:
    assert add(transaction(state), 7, 3, [ONE], 6) == Decision(CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (State.EMPTY, INVALID_TXN_STATE, INVALID_TXN_STATE),
        (State.PREPARE_COMMIT, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE),
        (State.PREPARE_ABORT, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS),
        (State.COMPLETE_COMMIT, NONE, INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, INVALID_TXN_STATE, NONE),
    ],
)
def test_an_end_may_be_repeated_but_not_changed(state: State, commit: int, abort: int) -> None:
    assert end(transaction(state), 7, 3, Marker.COMMIT) == Decision(commit)
    assert end(transaction(state), 7, 3, Marker.ABORT) == Decision(abort)


@pytest.mark.parametrize(
    ("marker", "prepared", "completed"),
    [
        (Marker.COMMIT, State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (Marker.ABORT, State.PREPARE_ABORT, State.COMPLETE_ABORT),
    ],
)
def test_an_open_transaction_is_prepared_and_completed(marker: Marker, prepared: State, completed: State) -> None:
    code, ending = end(transaction(State.ONGOING), 7, 3, marker)
    assert ending is not None
    assert (code, ending.state, ending.partitions, ending.marker) == (NONE, prepared, frozenset({ONE}), marker)
    done = complete(ending)
    assert (done.state, done.partitions, done.epoch) == (completed, frozenset(), 3)


@pytest.mark.parametrize("state", State)
def test_a_batch_is_taken_for_partitions_of_an_open_transaction_only(state: State) -> None:
    taken = NONE if state is State.ONGOING else CONCURRENT_TRANSACTIONS if state in ENDING else TRANSACTION_ABORTABLE
    assert has(transaction(state), 7, 3, ONE) == taken
    assert has(transaction(State.ONGOING), 7, 3, OTHER) == TRANSACTION_ABORTABLE
    assert has(transaction(state), 7, 2, ONE) == PRODUCER_FENCED


def test_only_an_open_transaction_can_be_late() -> None:
    assert [is_late(transaction(State.ONGOING), 10_005 + past) for past in (0, 1)] == [False, True]
    assert not any(is_late(transaction(state), 10**9) for state in [*IDLE, *ENDING])
