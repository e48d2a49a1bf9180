"""The checks of deliveries find what is planted, and nothing in what is right."""

from deploy.drills.clients.record_batches import TRANSACTIONAL, at_offset, end_marker, record_batch
from deploy.drills.deliveries import aborted_reads, duplicates, losses
from shared.kafka.client.batches import Batch, Marker

TARGET = ("topic", 0)


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


def test_copies_and_missing_records_are_found() -> None:
    assert duplicates([b"a", b"b", b"a"]) == ["b'a': copy 2 of 2"]
    assert losses([b"a", b"b"], [b"b"]) == ["b'a' was acknowledged"]
    assert (duplicates([b"a"]), losses([b"a"], [b"a"])) == ([], [])
