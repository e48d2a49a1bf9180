"""The model of a partition's log: sequences, epochs, transactions, and what a truncation takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.kafka.client.batches import Batch, Marker
from tests.batches import end_marker
from tests.simulation.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    RefusedError,
)
from tests.simulation.log import REMEMBERED_BATCHES, Log

PRODUCER = 7


def batch(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PRODUCER) -> Batch:
    """A batch of a transaction."""
    return record_batch([(b"k", b"v")] * count, producer, epoch, sequence, attributes=TRANSACTIONAL)


def marker(kind: Marker, *, epoch: int = 0, producer: int = PRODUCER, coordinator_epoch: int = 1) -> Batch:
    return end_marker(kind, producer, epoch, coordinator_epoch=coordinator_epoch)


@contextmanager
def refused(code: int) -> Iterator[None]:
    with pytest.raises(RefusedError) as error:
        yield
    assert error.value.code == code


def replicated(log: Log) -> Log:
    log.high_watermark = log.end
    return log


def test_batches_have_the_bytes_that_a_client_reads() -> None:
    [read] = record_batch([(b"a", b"1"), (b"b", b"2")], 3, 4, 5).records(("t", 0))[1:]
    assert (read.offset, read.key, read.value) == (1, b"b", b"2")
    made = marker(Marker.ABORT)
    assert (made.marker, made.is_control, made.is_transactional) == (Marker.ABORT, True, True)


def test_a_batch_that_was_resent_is_appended_once() -> None:
    log = Log()
    sent = [batch(number * 2, 2) for number in range(REMEMBERED_BATCHES + 1)]
    assert [log.append(one) for one in sent] == [0, 2, 4, 6, 8, 10]
    assert [log.append(one) for one in sent[1:]] == [2, 4, 6, 8, 10]
    assert log.end == 12
    with refused(OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(sent[0])


def test_sequences_follow_and_wrap() -> None:
    log = Log()
    log.append(batch(2**31 - 2, 2))
    with refused(OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(batch(1))
    assert log.append(batch(0)) == 2


def test_a_new_epoch_begins_at_sequence_0_and_ends_the_old_one() -> None:
    log = Log()
    log.append(batch(0))
    with refused(OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(batch(1, epoch=1))
    log.append(batch(0, epoch=1))
    with refused(INVALID_PRODUCER_EPOCH):
        log.append(batch(1))


def test_a_marker_with_a_newer_epoch_fences_the_producer() -> None:
    log = Log()
    log.append(batch(0))
    log.append_marker(marker(Marker.ABORT, epoch=1))
    with refused(INVALID_PRODUCER_EPOCH):
        log.append(batch(1))
    with refused(INVALID_PRODUCER_EPOCH):
        log.append_marker(marker(Marker.COMMIT))


def test_an_older_coordinator_is_fenced() -> None:
    log = Log()
    log.append(batch(0))
    log.append_marker(marker(Marker.COMMIT, coordinator_epoch=2))
    with refused(TRANSACTION_COORDINATOR_FENCED):
        log.append_marker(marker(Marker.COMMIT, coordinator_epoch=1))


def test_a_batch_outside_its_producers_transaction_is_refused() -> None:
    log = Log()
    log.append(batch(0))
    with refused(INVALID_TXN_STATE):
        log.append(record_batch([(b"k", b"v")], PRODUCER, 0, 1))


def test_the_last_stable_offset_waits_for_open_transactions_and_for_replicated_ends() -> None:
    log = Log()
    log.append(record_batch([(b"k", b"v")] * 3))
    log.append(batch(0))
    log.append(batch(0, producer=8))
    assert replicated(log).last_stable_offset == 3
    log.append_marker(marker(Marker.COMMIT))
    assert log.last_stable_offset == 3
    assert replicated(log).last_stable_offset == 4
    log.append_marker(marker(Marker.COMMIT, producer=8))
    assert log.last_stable_offset == 4
    assert replicated(log).last_stable_offset == log.end


def test_readers_get_the_aborted_transactions_of_their_range() -> None:
    log = Log()
    for sequence, kind in enumerate((Marker.ABORT, Marker.COMMIT, Marker.ABORT)):
        log.append(batch(sequence))
        log.append_marker(marker(kind))
    assert [(one.first_offset, one.last_offset) for one in log.aborted(0, 6)] == [(0, 1), (4, 5)]
    assert [one.first_offset for one in log.aborted(2, 6)] == [4]
    assert [one.first_offset for one in log.aborted(0, 4)] == [0]


def test_a_read_gives_whole_batches_and_at_least_one() -> None:
    log = Log()
    for number in range(4):
        log.append(batch(number * 3, 3))
    assert [one.base_offset for one in log.read(4, 9, 1_000_000)] == [3, 6]
    assert [one.base_offset for one in log.read(0, 12, 1)] == [0]


def test_a_truncation_takes_what_was_learnt_as_well() -> None:
    log = replicated(Log())
    log.append(batch(0))
    replicated(log)
    log.append(batch(1))
    log.append_marker(marker(Marker.ABORT, coordinator_epoch=9))
    log.truncate(1)
    state = log.producers[PRODUCER]
    assert (log.end, log.high_watermark, log.last_stable_offset) == (1, 1, 0)
    assert (state.transaction_from, state.coordinator_epoch, list(log.aborted(0, 10))) == (0, -1, [])
    assert log.append(batch(1)) == 1
