"""Partitions: Kafka's own murmur2 vectors, house accounts, and no partition without clients."""

import pytest

from shared.events.partitions import PARTITIONS, murmur2, partition_for, partition_for_bytes

SIGN_BIT = 1 << 31


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
    if b"@" not in data:
        assert partition_for(data.decode()) == (signed & 0x7FFFFFFF) % PARTITIONS


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_house_account_names_its_partition(partition: int) -> None:
    assert partition_for(f"cash@{partition}") == partition
    assert partition_for(f"fx:EUR@{partition}") == partition


@pytest.mark.parametrize("account", ["cash@6", "cash@", "@3", "cash@03", "cash@-1", "cash@³"])
def test_a_house_account_without_such_a_partition_is_refused(account: str) -> None:
    with pytest.raises(ValueError, match="must end in @0 to @5"):
        partition_for(account)


def test_clients_spread_over_all_partitions() -> None:
    counts = [0] * PARTITIONS
    for number in range(6000):
        counts[partition_for(str(number))] += 1
    assert min(counts) > 800


def test_bytes_without_an_account_always_have_the_same_partition() -> None:
    assert [partition_for_bytes(b"hello"), partition_for_bytes(b"\xff")] == [4, 0]
