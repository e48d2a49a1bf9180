"""Partitions: Kafka's own murmur2 vectors, house accounts, and no partition without clients, for several counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.events.fields import HOUSE_ACCOUNTS, is_account, is_client_account
from shared.events.partitions import PARTITIONS_MAX, murmur2, partition_for, partition_for_bytes, shards_text

SIGN_BIT = 1 << 31
COUNTS = (1, 3, 6, 12, PARTITIONS_MAX)
counts = st.sampled_from(COUNTS) | st.integers(1, PARTITIONS_MAX)


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(data: bytes, signed: int) -> None:
    hashed = murmur2(data)
    assert (hashed ^ SIGN_BIT) - SIGN_BIT == signed
    for count in COUNTS:
        assert partition_for(data.decode(), count) == (signed & 0x7FFFFFFF) % count


@given(counts, st.integers(0, PARTITIONS_MAX + 50))
def test_a_house_account_names_its_partition_or_is_refused(count: int, number: int) -> None:
    for account in (f"cash@{number}", f"fx:EUR@{number}"):
        if number < count:
            assert partition_for(account, count) == number
        else:
            with pytest.raises(ValueError, match=f"must end in {shards_text(count)}$"):
                partition_for(account, count)
    assert all(is_account(f"{name}@{number}", count) == (number < count) for name in HOUSE_ACCOUNTS)


@pytest.mark.parametrize("shard", ["", "03", "00", "-1", "+1", " 1", "1 ", "³", "1.0", "1_0", "x", "1000"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_shard_that_is_no_number_of_a_partition_is_refused(shard: str, count: int) -> None:
    with pytest.raises(ValueError, match="must end in @0"):
        partition_for(f"cash@{shard}", count)
    assert not is_account(f"cash@{shard}", count)


@pytest.mark.parametrize("account", ["@0", "@3"])
def test_a_house_account_without_a_name_is_refused(account: str) -> None:
    with pytest.raises(ValueError, match="must end in @0 to @5"):
        partition_for(account, 6)
    assert not is_account(account, 6)


@given(counts, st.text(st.characters(codec="utf-8", exclude_characters="@"), max_size=64))
def test_every_other_account_has_a_partition(count: int, account: str) -> None:
    assert 0 <= partition_for(account, count) < count
    assert is_account(account, count) == is_client_account(account)


@pytest.mark.parametrize("count", [1, 3, 6, 12])
def test_clients_spread_over_all_partitions(count: int) -> None:
    found = [0] * count
    for number in range(1000 * count):
        found[partition_for(str(number), count)] += 1
    assert min(found) > 800


def test_bytes_without_an_account_always_have_the_same_partition() -> None:
    assert [partition_for_bytes(b"hello", 6), partition_for_bytes(b"\xff", 6)] == [4, 0]
    assert all(0 <= partition_for_bytes(bytes([byte]), count) < count for byte in range(256) for count in COUNTS)
