"""What a partition's buffer returns of fetched batches, and where its position is."""

import pytest

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.kafka.client.batches import Batch, CorruptBatchError, Marker
from shared.kafka.client.buffer import FULL_BYTES, PartitionBuffer
from shared.kafka.client.fetch import Fetched
from tests.batches import at_offset, end_marker

TARGET = ("payments.raw", 3)
ONE, OTHER = 71, 72
"""Producer ids."""


def batch(offset: int, *values: bytes, producer_id: int = ONE) -> Batch:
    """Return a transactional batch."""
    return at_offset(
        record_batch([(b"k", value) for value in values], producer_id, 0, 0, attributes=TRANSACTIONAL), offset
    )


def marker(offset: int, kind: Marker, producer_id: int = ONE) -> Batch:
    return at_offset(end_marker(kind, producer_id, 0, coordinator_epoch=0), offset)


def part(*batches: Batch | bytes, aborted: tuple[tuple[int, int], ...] = ()) -> Fetched:
    data = b"".join(one if isinstance(one, bytes) else one.data for one in batches)
    return Fetched(TARGET, 0, 100, 90, list(aborted), data)


def corrupted(whole: Batch) -> bytes:
    """Return a batch with another last byte, and the former checksum."""
    return whole.data[:-1] + bytes([whole.data[-1] ^ 1])


def values(buffer: PartitionBuffer, records_max: int | None = None) -> list[bytes | None]:
    return [record.value for record in buffer.take(records_max)]


def test_nothing_is_known_before_the_first_fetch() -> None:
    buffer = PartitionBuffer(TARGET, 7)
    assert (buffer.state, buffer.fetch_offset, buffer.has_records, buffer.take()) == ((7, None, None), 7, False, [])


def test_records_keep_coordinates_and_content() -> None:
    buffer = PartitionBuffer(TARGET, 40)
    buffer.append(part(batch(40, b"a", b"b")))
    [first, second] = buffer.take()
    assert first == ("payments.raw", 3, 40, 0, b"k", b"a", ())
    assert (second.offset, second.value) == (41, b"b")
    assert type(first) is type(second)
    assert (first.topic, first.headers) == ("payments.raw", ())
    assert buffer.state == (42, 100, 90)


def test_the_position_is_behind_markers_once_the_records_before_them_were_taken() -> None:
    buffer = PartitionBuffer(TARGET, 0)
    buffer.append(part(batch(0, b"a", b"b"), marker(2, Marker.COMMIT), batch(3, b"c"), marker(4, Marker.COMMIT)))
    assert (buffer.position, buffer.fetch_offset) == (0, 5)
    assert (values(buffer, 1), buffer.position) == ([b"a"], 1)
    assert (values(buffer, 1), buffer.position) == ([b"b"], 3)
    assert (values(buffer), buffer.position, buffer.has_records) == ([b"c"], 5, False)
    buffer.append(part(marker(5, Marker.COMMIT, OTHER)))
    assert (buffer.position, buffer.has_records) == (6, False)


def test_aborted_records_are_passed() -> None:
    buffer = PartitionBuffer(TARGET, 0)
    buffer.append(
        part(
            batch(0, b"dropped"),
            batch(1, b"kept", producer_id=OTHER),
            marker(2, Marker.ABORT),
            batch(3, b"later"),
            aborted=((ONE, 0),),
        )
    )
    assert buffer.position == 1
    assert values(buffer) == [b"kept", b"later"]
    buffer.append(part(batch(4, b"dropped"), aborted=((ONE, 4),)))
    assert (buffer.has_records, buffer.position, buffer.take()) == (False, 5, [])


def test_records_before_the_first_offset_are_left_out() -> None:
    buffer = PartitionBuffer(TARGET, 11)
    buffer.append(part(batch(10, b"a", b"b", b"c")))
    assert buffer.position == 11
    assert values(buffer) == [b"b", b"c"]


@pytest.mark.parametrize("records_max", [1, 2, 3, 5, 100])
def test_a_limit_changes_neither_records_nor_order(records_max: int) -> None:
    buffer = PartitionBuffer(TARGET, 0)
    buffer.append(part(batch(0, b"0", b"1", b"2"), marker(3, Marker.COMMIT), batch(4, b"4", b"5")))
    taken: list[bytes | None] = []
    while buffer.has_records:
        some = values(buffer, records_max)
        assert 1 <= len(some) <= records_max
        taken += some
    assert taken == [b"0", b"1", b"2", b"4", b"5"]
    assert values(buffer, 0) == []


def test_a_batch_that_is_cut_off_is_fetched_again() -> None:
    whole = batch(2, b"c")
    buffer = PartitionBuffer(TARGET, 0)
    buffer.append(part(batch(0, b"a", b"b"), whole.data[:50]))
    assert buffer.fetch_offset == 2
    buffer.append(part(whole))
    assert values(buffer) == [b"a", b"b", b"c"]


def test_a_buffer_is_full_until_its_batches_are_taken() -> None:
    buffer = PartitionBuffer(TARGET, 0)
    full: list[bool] = []
    for offset in range(3):
        buffer.append(part(batch(offset, bytes(FULL_BYTES // 2))))
        full.append(buffer.is_full)
        if offset == 1:
            assert len(buffer.take(1)) == 1
            full.append(buffer.is_full)
    assert full == [False, True, False, True], "what was taken does not count any more"


def test_a_corrupt_batch_is_an_error_when_it_is_taken_and_stays() -> None:
    buffer = PartitionBuffer(TARGET, 0)
    buffer.append(part(corrupted(batch(0, b"a"))))
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=r"payments\.raw:3:0 has a wrong checksum"):
            buffer.take()
    assert buffer.position == 0


@pytest.mark.parametrize(
    "batches",
    [(corrupted(batch(0, b"a")), marker(1, Marker.ABORT)), (batch(0, b"a"), corrupted(marker(1, Marker.ABORT)))],
    ids=["aborted", "marker"],
)
def test_a_corrupt_batch_that_decides_what_is_left_out_is_an_error(batches: tuple[Batch | bytes, ...]) -> None:
    buffer = PartitionBuffer(TARGET, 0)
    with pytest.raises(CorruptBatchError, match="has a wrong checksum"):
        buffer.append(part(*batches, aborted=((ONE, 0),)))
    assert (buffer.fetch_offset, buffer.has_records) == (0, False)
