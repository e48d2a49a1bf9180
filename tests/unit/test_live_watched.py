"""The setting of the instances that the page watches."""

import pytest

from services.balances.dashboard.observed import Watched, WatchedError, parse_watched


def test_several_instances_of_a_service_are_read() -> None:
    assert parse_watched(" ingest=127.0.0.1:9101, ingest=127.0.0.1:9102,ledger=ledger.internal:9103 ") == (
        Watched("ingest", "127.0.0.1", 9101),
        Watched("ingest", "127.0.0.1", 9102),
        Watched("ledger", "ledger.internal", 9103),
    )


def test_an_empty_setting_watches_no_instance() -> None:
    assert parse_watched("") == parse_watched(" , ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "ingest",
        "ingest=",
        "ingest=9101",
        "ingest=:9101",
        "ingest=host:",
        "ingest=host:0",
        "ingest=host:65536",
        "ingest=host:+1",
        "=host:1",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(WatchedError, match=r"is not service=host:port|names no service"):
        parse_watched(text)


def test_a_service_that_is_not_shown_is_refused() -> None:
    with pytest.raises(WatchedError, match="there are gateway, ingest"):
        parse_watched("balances=127.0.0.1:9101")


def test_one_monitor_is_watched() -> None:
    assert parse_watched("monitor=127.0.0.1:9101") == (Watched("monitor", "127.0.0.1", 9101),)
    with pytest.raises(WatchedError, match="second monitor: name one"):
        parse_watched("monitor=h:1,ledger=h:2,monitor=h:3")


def test_a_duplicate_instance_is_refused() -> None:
    with pytest.raises(WatchedError, match="twice"):
        parse_watched("ledger=h:1,ledger=h:1")
