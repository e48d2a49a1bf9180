"""The runtime's pure half: states, errors, crash points, progress, refused settings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.eos.errors import (
    GENERATION,
    AbortableError,
    FatalError,
    FencedError,
    RejoinError,
    Severity,
    UnknownOutcomeError,
    UnsafeSettingsError,
    as_eos_error,
    severity,
)
from shared.eos.progress import start_offset
from shared.eos.safety import refuse_timeout_above, refuse_unsafe
from shared.eos.states import TRANSITIONS, Event, InvalidTransitionError, State, advance
from shared.events import catalogue
from shared.events.partitions import PARTITIONS_MAX
from shared.settings import (
    GatewaySettings,
    MonitorSettings,
    OutboxSettings,
    RuntimeSettings,
    SettingsError,
    ViewSettings,
    load,
    partitions,
    replication_factor,
)

SAFE = RuntimeSettings(bootstrap_servers="127.0.0.1:1")


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_random_events_stay_within_the_transition_table(events: list[Event]) -> None:
    state = State.UNINITIALIZED
    for event in events:
        if (state, event) in TRANSITIONS:
            state = advance(state, event)
        else:
            with pytest.raises(InvalidTransitionError):
                advance(state, event)


def test_only_close_leaves_an_unknown_outcome_or_a_fatal_error() -> None:
    for state in (State.UNKNOWN, State.FATAL_ERROR):
        assert {event for (source, event) in TRANSITIONS if source is state} == {Event.CLOSE}


def test_after_a_failed_send_only_an_abort_or_a_graver_state_follows() -> None:
    leading_out = {event for (source, event) in TRANSITIONS if source is State.ABORTABLE_ERROR}
    assert Event.COMMIT not in leading_out
    assert Event.ABORT in leading_out


def test_only_initialising_makes_a_producer_ready_for_the_first_time() -> None:
    into_ready = {source for (source, _), target in TRANSITIONS.items() if target is State.READY}
    assert into_ready == {State.INITIALIZING, State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION}


def test_an_error_that_is_not_in_the_table_is_fatal() -> None:
    assert severity("SomethingNew") is Severity.FATAL
    assert isinstance(as_eos_error("SomethingNew", ""), FatalError)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("InvalidProducerEpoch", FencedError),
        ("ProducerFenced", FencedError),
        ("InvalidProducerIdMapping", RejoinError),
        ("MessageSizeTooLargeError", AbortableError),
        ("RequestTimedOutError", UnknownOutcomeError),
        ("OutOfOrderSequenceNumber", AbortableError),
        ("UnstableOffsetCommitError", UnknownOutcomeError),
        ("KafkaStorageError", UnknownOutcomeError),
        *((name, AbortableError) for name in sorted(GENERATION)),
    ],
)
def test_errors_are_classified_by_kafkas_names(name: str, kind: type[Exception]) -> None:
    assert type(as_eos_error(name, "why")) is kind


def test_a_crash_point_acts_at_its_nth_pass_and_once() -> None:
    acted: list[str] = []
    points = CrashPoints("after_send=kill:3", acted.append)
    for _ in range(2):
        points.reach(crash.AFTER_SEND)
    assert points.armed(crash.AFTER_SEND)
    assert not points.armed(crash.BEFORE_SEND)
    points.reach(crash.BEFORE_SEND)
    assert acted == []
    points.reach(crash.AFTER_SEND)
    points.reach(crash.AFTER_SEND)
    assert acted == ["kill"]


@pytest.mark.parametrize("setting", ["nowhere=kill:1", "after_send=explode:1", "after_send=kill:0", "after_send"])
def test_a_crash_point_that_does_not_exist_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="crash point"):
        CrashPoints(setting, lambda _: None)


@pytest.mark.parametrize(
    ("committed", "next_offset", "expected"),
    [(None, None, 7), (10, None, 10), (None, 12, 12), (0, 12, 12), (15, 12, 15)],
)
def test_processing_starts_at_the_larger_of_committed_and_next_offset(
    committed: int | None, next_offset: int | None, expected: int
) -> None:
    assert start_offset(committed, next_offset, beginning=7) == expected


def test_safe_settings_pass() -> None:
    refuse_unsafe(SAFE)
    refuse_timeout_above(SAFE, broker_max_ms=60_000)


@pytest.mark.parametrize("timeout_ms", [1, SAFE.transaction_open_ms, 2 * SAFE.transaction_open_ms])
def test_a_timeout_that_aborts_transactions_at_work_is_refused_by_name(timeout_ms: int) -> None:
    with pytest.raises(UnsafeSettingsError, match=rf"ONCE_TRANSACTION_TIMEOUT_MS is {timeout_ms}:.*OPEN_MS"):
        refuse_unsafe(replace(SAFE, transaction_timeout_ms=timeout_ms))
    refuse_unsafe(replace(SAFE, transaction_timeout_ms=2 * SAFE.transaction_open_ms + 1))


def test_a_timeout_above_the_brokers_maximum_is_refused() -> None:
    with pytest.raises(UnsafeSettingsError, match=r"transaction\.max\.timeout\.ms"):
        refuse_timeout_above(SAFE, broker_max_ms=9_999)


def test_settings_name_every_wrong_variable_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        load(
            OutboxSettings,
            {
                "ONCE_TRANSACTION_TIMEOUT_MS": "soon",
                "ONCE_SMTP_STARTTLS": "perhaps",
                "ONCE_PRODUCER_ACKS": "all",
                "ONCE_FENCING": "transactional_id",
                "ONCE_LOG_LEVEL": "LOUD",
            },
        )
    message = str(raised.value)
    for variable in (
        "ONCE_BOOTSTRAP_SERVERS",
        "ONCE_TRANSACTION_TIMEOUT_MS",
        "ONCE_SMTP_STARTTLS",
        "ONCE_PRODUCER_ACKS",
        "ONCE_FENCING",
        "ONCE_LOG_LEVEL",
    ):
        assert variable in message


def test_settings_are_read_with_their_types() -> None:
    settings = load(
        OutboxSettings,
        {
            "ONCE_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "ONCE_REDIS_URL": "redis://127.0.0.1:2/0",
            "ONCE_SMTP_STARTTLS": "false",
            "ONCE_STOP_DEADLINE_S": "1.5",
        },
    )
    assert (settings.smtp_starttls, settings.stop_deadline_s) == (False, 1.5)


@pytest.mark.parametrize(("value", "chosen"), [(None, 6), ("1", 1), ("12", 12), (str(PARTITIONS_MAX), PARTITIONS_MAX)])
def test_services_and_commands_have_the_partitions_of_the_installation(
    value: str | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {} if value is None else {"ONCE_PARTITIONS": value}
    monkeypatch.delenv("ONCE_PARTITIONS", raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert partitions() == chosen
    for cls in (RuntimeSettings, GatewaySettings, ViewSettings, MonitorSettings):
        assert load(cls, {"ONCE_BOOTSTRAP_SERVERS": "127.0.0.1:1", **environment}).partitions == chosen


@pytest.mark.parametrize("value", ["0", "-1", str(PARTITIONS_MAX + 1), "six", "1.5", ""])
def test_a_number_of_partitions_that_topics_cannot_have_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE_PARTITIONS", value)
    with pytest.raises(SettingsError, match=f"ONCE_PARTITIONS is '{value}', which is not int: .*1 to {PARTITIONS_MAX}"):
        partitions()


@pytest.mark.parametrize(("brokers", "chosen"), [(1, 1), (2, 2), (3, 3), (5, 3), (None, 3)])
def test_topics_have_three_replicas_where_there_are_three_brokers(
    brokers: int | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONCE_REPLICATION_FACTOR", raising=False)
    assert replication_factor(brokers) == chosen


@pytest.mark.parametrize(("value", "brokers"), [("0", None), ("-1", 3), ("4", 3), ("many", 3)])
def test_a_replication_factor_that_brokers_cannot_have_is_refused(
    value: str, brokers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCE_REPLICATION_FACTOR", value)
    with pytest.raises(SettingsError, match=f"ONCE_REPLICATION_FACTOR is '?{value}"):
        replication_factor(brokers)


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_all_replicas_but_one_must_be_in_sync(replicas: int, in_sync: int) -> None:
    assert catalogue.BY_NAME[catalogue.PAYMENTS_RAW].settings(replicas)["min.insync.replicas"] == str(in_sync)


def test_the_end_of_a_waiting_is_kept_for_runs_after_missed_nights() -> None:
    kept_ms = catalogue.BY_NAME[catalogue.EFFECTS_WAITING].settings()["delete.retention.ms"]
    assert int(kept_ms) == catalogue.SUPERSEDED_KEPT_MS
