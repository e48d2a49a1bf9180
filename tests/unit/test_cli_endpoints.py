"""`once endpoints`: names of endpoints, what is waiting, and which effects a replay sends again."""

import click
import pytest

from deploy.cli.endpoints import _endpoint, _Failed, _Waiting
from deploy.cli.output import iso_ms
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import (
    WAITING_PREFIX,
    EffectResult,
    Resolution,
    Waiting,
    decode_request,
    encode_result,
    encode_waiting,
)
from tests.sinks.effects import effect

HOOK = "https://example.org/hook"
NAME = "https://example.org:443/hook"


def test_an_endpoint_is_given_by_its_name_or_by_a_destination() -> None:
    assert {_endpoint(value) for value in (HOOK, NAME, HOOK + "?tenant=7")} == {NAME}
    assert _endpoint("file:receipts") == "file:receipts"
    assert _endpoint("smtp") == "smtp"


@pytest.mark.parametrize(
    "value", ["nonsense", "http://h:99999/", "https://user@h/", "file:A", "mailto:bob@example.org"]
)
def test_what_is_no_endpoint_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter, match="smtp is the mail server"):
        _endpoint(value)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [("2026-01-05T09:30", 1_767_605_400_000), ("2026-01-05T10:30:00+01:00", 1_767_605_400_000)],
)
def test_a_time_is_in_utc_unless_it_names_an_offset(text: str, at_ms: int) -> None:
    assert iso_ms(text) == at_ms
    with pytest.raises(click.BadParameter, match="is not a time"):
        iso_ms("yesterday")


def result(number: int, state: str, at_ms: int = 100, destination: str = HOOK, reason: str = "") -> Record:
    request = None if state == "sent" else effect(number, destination)
    found = EffectResult(f"{number:032x}", state, at_ms, 2, 3, 0, reason, "", request)
    headers = (("origin", b"payments.raw:0:1"),)
    return Record(EFFECTS_RESULTS, 4, number, 0, found.effect_id.encode(), encode_result(found), headers)


def waits(number: int, destination: str = HOOK, *, gone: bool = False) -> Record:
    waiting = Waiting(effect(number, destination), "effects.requests:0:1", "payments.raw:0:0", 1, 0, 0, number)
    key = WAITING_PREFIX + f"{number:032x}".encode()
    return Record(EFFECTS_WAITING, 4, number, 0, key, None if gone else encode_waiting(waiting), ())


def decisions(endpoint: str, since_ms: int, *records: Record) -> list[Resolution]:
    failed = _Failed(endpoint, since_ms)
    for record in records:
        failed.take(record.topic, record.partition, [record])
    found = [decode_request(value) for _, _, value, _ in failed.resolutions()]
    return [decision for decision in found if isinstance(decision, Resolution)]


def resent(endpoint: str, since_ms: int, *records: Record) -> list[int]:
    found = decisions(endpoint, since_ms, *records)
    assert all((each.action, each.revision) == ("resend", 3) for each in found)
    return [int(each.effect_id, 16) for each in found]


def test_a_replay_has_what_failed_or_is_in_doubt_since_a_time_in_its_order() -> None:
    records = [
        result(1, "failed", 300, reason="endpoint_disabled"),
        result(2, "failed", 200, HOOK + "?tenant=7", "retries_exhausted"),
        result(3, "in_doubt", 250),
        result(4, "failed", 99),
        result(5, "sent", 300),
        result(6, "failed", 300, reason="abandoned"),
        result(7, "failed", 300, "https://example.org/other"),
    ]
    assert resent(NAME, 100, *records) == [2, 3, 1]


def test_a_replay_says_whether_an_effect_may_have_been_sent() -> None:
    records = result(1, "failed", 100, reason="endpoint_disabled"), result(2, "in_doubt", 200)
    assert [decision.settles_doubt for decision in decisions(NAME, 0, *records)] == [False, True]


def test_a_replay_leaves_out_what_waits_and_what_was_sent_since() -> None:
    assert resent(NAME, 0, result(1, "failed"), waits(1)) == []
    assert resent(NAME, 0, result(1, "failed"), waits(1), waits(1, gone=True)) == [1]
    assert resent(NAME, 0, result(1, "failed"), result(1, "sent")) == []


def test_mails_in_doubt_are_left_to_a_person() -> None:
    mail = "mailto:bob@example.org"
    assert resent("smtp", 0, result(1, "in_doubt", destination=mail), result(2, "failed", destination=mail)) == [2]


def test_waiting_effects_are_counted_by_endpoint() -> None:
    waiting = _Waiting()
    records = [waits(1), waits(2, HOOK + "?tenant=7"), waits(3, "file:receipts"), waits(2, gone=True), waits(4, "odd")]
    waiting.take(EFFECTS_WAITING, 4, records)
    assert waiting.counts() == {NAME: 1, "file:receipts": 1, "odd": 1}
