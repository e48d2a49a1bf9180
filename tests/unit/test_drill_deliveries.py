"""The checks of deliveries find what is planted, and nothing in what is right."""

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from deploy.drills.deliveries import aborted_reads, duplicates, losses, reorderings
from shared.kafka.client.batches import Batch, Marker
from tests.batches import at_offset, end_marker

TARGET = ("topic", 0)
SENT = [b"0", b"1", b"2", b"3"]


def data(offset: int, producer_id: int, value: bytes, *, transactional: bool = True) -> Batch:
    batch = record_batch([(None, value)], producer_id, 0, 0, attributes=TRANSACTIONAL if transactional else 0)
    return at_offset(batch, offset)


def marker(offset: int, producer_id: int, kind: Marker) -> Batch:
    return at_offset(end_marker(kind, producer_id, 0, coordinator_epoch=0), offset)


LOG = [
    data(0, 1, b"kept"),
    data(1, 2, b"dropped"),
    marker(2, 1, Marker.COMMIT),
    marker(3, 2, Marker.ABORT),
    data(4, 2, b"kept later"),
    data(5, -1, b"plain", transactional=False),
    marker(6, 2, Marker.COMMIT),
    data(7, 1, b"still open"),
]


def test_a_record_of_an_aborted_transaction_is_an_aborted_read() -> None:
    everything = [b"kept", b"dropped", b"kept later", b"plain", b"still open"]
    assert aborted_reads(everything, LOG, TARGET) == ["b'dropped' at topic:0:1"]


def test_a_record_that_was_not_read_is_no_aborted_read() -> None:
    assert aborted_reads([b"kept", b"kept later", b"plain"], LOG, TARGET) == []


def test_an_undisturbed_delivery_has_no_anomaly() -> None:
    assert (duplicates(SENT), losses(SENT, SENT), reorderings(SENT, SENT)) == ([], [], [])
    assert (duplicates([]), losses([], SENT), reorderings(SENT, [])) == ([], [], [])


def test_each_further_copy_is_a_duplicate() -> None:
    assert duplicates([b"0", b"1", b"0", b"2", b"0"]) == ["b'0': copy 2 of 3", "b'0': copy 3 of 3"]


def test_an_acknowledged_record_that_is_not_there_is_a_loss() -> None:
    assert losses(SENT, [b"3", b"0", b"0"]) == ["b'1' was acknowledged", "b'2' was acknowledged"]


def test_a_record_behind_a_later_one_is_a_reordering_and_a_gap_or_a_copy_is_none() -> None:
    assert reorderings(SENT, [b"0", b"2", b"3", b"1"]) == ["b'1' behind b'3'"]
    assert reorderings(SENT, [b"3", b"0", b"1"]) == ["b'0' behind b'3'", "b'1' behind b'3'"]
    assert reorderings(SENT, [b"0", b"3", b"0"]) == []
