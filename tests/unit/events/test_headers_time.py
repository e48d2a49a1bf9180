"""The oldest origin time of several records, only some of which carry one."""

from shared.events.headers import Headers, oldest_origin_time_ms

UNTIMED: Headers = (("origin", b"payments.raw:0:1"),)
TIMED: Headers = (*UNTIMED, ("origin-time", b"1700000000000"))


def test_the_first_origin_time_counts() -> None:
    later: Headers = (("origin-time", b"1700000000010"),)
    assert oldest_origin_time_ms([UNTIMED, UNTIMED, TIMED, later]) == 1_700_000_000_000


def test_an_invalid_origin_time_is_skipped() -> None:
    for nonsense in (b"soon", b"1" * 19, b"1" * 5000):
        assert oldest_origin_time_ms([(("origin-time", nonsense),), TIMED]) == 1_700_000_000_000


def test_the_search_for_an_origin_time_is_bounded() -> None:
    assert oldest_origin_time_ms([]) is None
    assert oldest_origin_time_ms([*[UNTIMED] * 255, TIMED]) == 1_700_000_000_000
    assert oldest_origin_time_ms([*[UNTIMED] * 256, TIMED]) is None
