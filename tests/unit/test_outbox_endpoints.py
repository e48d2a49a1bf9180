"""Endpoints: the first failure goes on record, days of failing disable one, a success and an operator end that."""

import pytest

from services.outbox.endpoints import ANNOUNCED_MS, CONTINUED_MS, Endpoints
from shared.events.endpoints import Endpoint, EndpointState

NAME = "https://example.org:443/hook"
DAY_MS = 86_400_000
BEGUN_MS = 1_000_000


def written(endpoints: Endpoints, records: dict[str, Endpoint]) -> list[Endpoint]:
    """Take the changes, and have them read back."""
    changes = endpoints.take_changes()
    records.update(changes)
    return list(changes.values())


def fail(endpoints: Endpoints, begin_ms: int, end_ms: int) -> None:
    """Have it fail every hour or more often, first and last at these times."""
    for at_ms in [*range(begin_ms, end_ms, 3_600_000), end_ms]:
        endpoints.observe(NAME, at_ms, "503")


def test_an_endpoint_that_fails_for_days_goes_on_record_and_is_disabled() -> None:
    records: dict[str, Endpoint] = {}
    endpoints = Endpoints(records, 3 * DAY_MS)
    for at_ms in range(BEGUN_MS, BEGUN_MS + ANNOUNCED_MS, 10_000):
        endpoints.observe(NAME, at_ms, "503")
    assert written(endpoints, records) == []
    endpoints.observe(NAME, BEGUN_MS + ANNOUNCED_MS, "503")
    [failing] = written(endpoints, records)
    assert (failing.state, failing.failing_since_ms) == (EndpointState.ENABLED, BEGUN_MS)
    endpoints.observe(NAME, BEGUN_MS + 3 * DAY_MS - 1, "503")
    assert written(endpoints, records) == []
    endpoints.observe(NAME, BEGUN_MS + 3 * DAY_MS, "503 at last")
    [disabled] = written(endpoints, records)
    assert disabled == Endpoint("disabled", BEGUN_MS + 3 * DAY_MS, BEGUN_MS, "outbox", "503 at last")
    assert endpoints.is_disabled(NAME)
    assert endpoints.disabled_count() == 1
    endpoints.observe(NAME, BEGUN_MS + 4 * DAY_MS, "503")
    endpoints.observe(NAME, BEGUN_MS + 4 * DAY_MS, None)
    assert written(endpoints, records) == [], "a call that was under way changes nothing"


def test_the_time_counts_over_restarts_and_instances() -> None:
    records = {NAME: Endpoint("enabled", BEGUN_MS + ANNOUNCED_MS, BEGUN_MS)}
    endpoints = Endpoints(records, DAY_MS)
    endpoints.observe(NAME, BEGUN_MS + DAY_MS, "no connection")
    assert endpoints.is_disabled(NAME)


def test_a_success_begins_the_time_again() -> None:
    records: dict[str, Endpoint] = {}
    endpoints = Endpoints(records, DAY_MS)
    endpoints.observe(NAME, BEGUN_MS, "503")
    endpoints.observe(NAME, BEGUN_MS + ANNOUNCED_MS, "503")
    written(endpoints, records)
    endpoints.observe(NAME, BEGUN_MS + 2 * ANNOUNCED_MS, None)
    assert written(endpoints, records) == [Endpoint("enabled", BEGUN_MS + 2 * ANNOUNCED_MS)]
    endpoints.observe(NAME, BEGUN_MS + DAY_MS, "503")
    endpoints.observe(NAME, BEGUN_MS + DAY_MS + 1, None)
    assert written(endpoints, records) == []
    assert not endpoints.is_disabled(NAME)


def test_an_operator_enables_it_and_its_time_begins_again() -> None:
    records: dict[str, Endpoint] = {}
    endpoints = Endpoints(records, DAY_MS)
    fail(endpoints, BEGUN_MS, BEGUN_MS + DAY_MS)
    assert endpoints.is_disabled(NAME), "also before it is read back"
    written(endpoints, records)
    records[NAME] = Endpoint("enabled", BEGUN_MS + 2 * DAY_MS, by="operator")
    assert not endpoints.is_disabled(NAME)
    fail(endpoints, BEGUN_MS + 2 * DAY_MS + 1, BEGUN_MS + 3 * DAY_MS)
    assert not endpoints.is_disabled(NAME)
    endpoints.observe(NAME, BEGUN_MS + 3 * DAY_MS + 1, "503")
    assert endpoints.is_disabled(NAME)


@pytest.mark.parametrize(("pause_ms", "since_ms"), [(CONTINUED_MS, BEGUN_MS), (CONTINUED_MS + 1, None)])
def test_failures_far_apart_are_not_one(pause_ms: int, since_ms: int | None) -> None:
    records: dict[str, Endpoint] = {}
    endpoints = Endpoints(records, CONTINUED_MS)
    endpoints.observe(NAME, BEGUN_MS, "503")
    endpoints.observe(NAME, BEGUN_MS + pause_ms, "503")  # another instance may have reached it meanwhile
    found = written(endpoints, records)
    assert [one.failing_since_ms for one in found] == [since_ms] * (since_ms is not None)
    assert endpoints.is_disabled(NAME) == (since_ms is not None)


def test_none_is_disabled_without_a_time() -> None:
    endpoints = Endpoints({}, 0)
    fail(endpoints, BEGUN_MS, BEGUN_MS + 100 * DAY_MS)
    assert not endpoints.is_disabled(NAME)


def test_changes_that_were_not_committed_are_written_later_unless_there_are_newer_ones() -> None:
    endpoints = Endpoints({}, DAY_MS)
    endpoints.observe(NAME, BEGUN_MS, "503")
    endpoints.observe(NAME, BEGUN_MS + ANNOUNCED_MS, "503")
    taken = endpoints.take_changes()
    endpoints.give_back(taken)
    assert endpoints.take_changes() == taken
    endpoints.observe(NAME, BEGUN_MS + DAY_MS, "503")
    endpoints.give_back(taken)
    assert endpoints.take_changes()[NAME].state == EndpointState.DISABLED
