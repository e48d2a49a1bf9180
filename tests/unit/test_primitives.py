"""Kafka's primitive types from bytes that are not what they should be."""

import pytest

from shared.kafka.client.primitives import ProtocolDecodeError, Reader


def test_nulls_are_told_from_what_is_empty() -> None:
    assert [Reader(data).string() for data in (b"\xff\xff", b"\x00\x00")] == [None, ""]
    assert [Reader(data).compact_string() for data in (b"\x00", b"\x01")] == [None, ""]
    assert [Reader(data).nullable_bytes() for data in (b"\xff" * 4, b"\x00" * 4)] == [None, b""]
    assert Reader(b"\xff" * 4).array(Reader(b"").int8) == []
    assert Reader(b"\x00").compact_array(Reader(b"").int8) == []


def test_tagged_fields_are_kept_as_bytes_by_tag() -> None:
    assert Reader(b"\x02\x00\x01a\x07\x00").tagged_fields() == {0: b"a", 7: b""}


def test_an_array_cannot_ask_for_more_items_than_bytes() -> None:
    reader = Reader(b"\x7f\xff\xff\xff\x00")
    with pytest.raises(ProtocolDecodeError, match="2147483647 items wanted at 4, 1 bytes are left"):
        reader.array(reader.int8)


def test_a_number_that_never_ends_is_refused() -> None:
    with pytest.raises(ProtocolDecodeError, match="more than 5 bytes"):
        Reader(b"\xff" * 9).uvarint()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x02a", b"\x00\x01\xff"])
def test_a_string_that_is_cut_off_or_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolDecodeError):
        Reader(data).string()


def test_reading_may_begin_in_the_middle() -> None:
    reader = Reader(b"\x00\x00\x07\x01\x00", 2)
    assert (reader.int8(), reader.boolean(), reader.boolean(), reader.left) == (7, True, False, 0)
    with pytest.raises(ProtocolDecodeError, match="-1 bytes wanted"):
        reader.take(-1)
