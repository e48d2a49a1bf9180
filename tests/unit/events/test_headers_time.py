"""When the oldest of some records came, told by some of them only."""

from shared.events.headers import Headers, oldest_origin_time_ms

SILENT: Headers = (("origin", b"payments.raw:0:1"),)
TOLD: Headers = (*SILENT, ("origin-time", b"1700000000000"))


def test_the_first_that_tells_counts() -> None:
    later: Headers = (("origin-time", b"1700000000010"),)
    assert oldest_origin_time_ms([SILENT, SILENT, TOLD, later]) == 1_700_000_000_000


def test_nonsense_is_not_told() -> None:
    for nonsense in (b"soon", b"1" * 19, b"1" * 5000):
        assert oldest_origin_time_ms([(("origin-time", nonsense),), TOLD]) == 1_700_000_000_000


def test_none_is_looked_for_without_end() -> None:
    assert oldest_origin_time_ms([]) is None
    assert oldest_origin_time_ms([*[SILENT] * 255, TOLD]) == 1_700_000_000_000
    assert oldest_origin_time_ms([*[SILENT] * 256, TOLD]) is None
