"""The outbox's settings: an unsafe one is refused with its variable and what to change."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.local.redis.server import redis_config
from services.outbox.domain import Policy
from services.outbox.limits import (
    BYTES_PER_EFFECT,
    EFFECTS_PER_BUCKET,
    MARGIN_MS,
    Capacity,
    longest_replay_ms,
    memory_ms,
    policy_of,
    raise_if_too_small,
    resent_kinds,
)
from shared.eos.errors import UnsafeSettingsError
from shared.events.catalogue import BY_NAME, EFFECTS_REQUESTS
from shared.events.effects import EffectKind
from shared.settings import InstallationSettings, OutboxSettings
from tests.harness import ROOT

HOUR_MS = 3_600_000
SETTINGS = OutboxSettings(bootstrap_servers="127.0.0.1:9092", redis_url="redis://127.0.0.1:6379/0")


def with_(**changes: Any) -> OutboxSettings:
    return replace(SETTINGS, **changes)


def test_the_defaults_are_accepted() -> None:
    assert policy_of(SETTINGS) == Policy(1000, 300_000, 86_400_000, frozenset())


def test_a_policy_is_in_milliseconds() -> None:
    policy = policy_of(
        with_(retry_first_s=0.25, retry_max_s=2.5, retry_deadline_s=60, in_doubt="receipt=resend, notice=hold")
    )
    assert policy == Policy(250, 2500, 60_000, frozenset({"receipt"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lease_s": 9.9}, r"ONCE_OUTBOX_LEASE_S is 9\.9: at least twice ONCE_OUTBOX_CALL_TIMEOUT_S \(5\)"),
        ({"call_timeout_s": 8.0}, r"ONCE_OUTBOX_CALL_TIMEOUT_S is 8: below ONCE_STOP_DEADLINE_S \(8\)"),
        ({"call_timeout_s": 0.0}, "ONCE_OUTBOX_CALL_TIMEOUT_S is 0: set it above 0"),
        ({"redis_timeout_s": 0.0}, "ONCE_REDIS_TIMEOUT_S is 0: set it above 0"),
        ({"batch_max": 0}, "ONCE_OUTBOX_BATCH_MAX is 0: set it above 0"),
        ({"rate_per_s": 0.0}, "ONCE_OUTBOX_RATE is 0: set it above 0"),
        ({"calls_max": -1}, "ONCE_OUTBOX_CALLS_MAX is -1: set it above 0"),
        ({"waiting_max": 0}, "ONCE_OUTBOX_WAITING_MAX is 0: set it above 0"),
        ({"retry_first_s": 0.0}, "ONCE_OUTBOX_RETRY_FIRST_S is 0: set it above 0"),
        ({"circuit_failures": 0}, "ONCE_OUTBOX_CIRCUIT_FAILURES is 0: set it above 0"),
        ({"retry_max_s": 0.9}, "ONCE_OUTBOX_RETRY_MAX_S is below ONCE_OUTBOX_RETRY_FIRST_S: raise it"),
        ({"in_doubt": "receipt=maybe"}, "ONCE_OUTBOX_IN_DOUBT has 'receipt=maybe'"),
    ],
)
def test_an_unsafe_setting_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsafeSettingsError, match=f"^{message}[^;]*$"):
        policy_of(with_(**changes))


def test_the_bounds_themselves_are_accepted() -> None:
    assert policy_of(with_(lease_s=10.0, call_timeout_s=5.0, stop_deadline_s=5.1, retry_max_s=1.0)) == Policy(
        1000, 1000, 86_400_000, frozenset()
    )


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(UnsafeSettingsError) as caught:
        policy_of(with_(batch_max=0, in_doubt="letter=resend", lease_s=1.0))
    reasons = str(caught.value).split("; ")
    assert [reason.split()[0] for reason in reasons] == [
        "ONCE_OUTBOX_IN_DOUBT",
        "ONCE_OUTBOX_LEASE_S",
        "ONCE_OUTBOX_BATCH_MAX",
    ]


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("", set()),
        (" , ", set()),
        ("receipt=hold", set()),
        ("receipt=resend", {"receipt"}),
        ("receipt=resend,notice=hold, decline_notice=resend", {"receipt", "decline_notice"}),
        (",".join(f"{kind}=resend" for kind in EffectKind), set(EffectKind)),
    ],
)
def test_kinds_that_are_resent_when_in_doubt(setting: str, kinds: set[str]) -> None:
    assert resent_kinds(setting) == kinds


@pytest.mark.parametrize(
    "part", ["receipt", "receipt=", "=resend", "receipt=Resend", "letter=resend", "resend=receipt", "receipt=hold=hold"]
)
def test_an_invalid_policy_is_refused_with_the_known_kinds(part: str) -> None:
    with pytest.raises(
        ValueError, match=f"^ONCE_OUTBOX_IN_DOUBT has '{part}': .*receipt, notice, decline_notice, event"
    ):
        resent_kinds(f"notice=hold,{part}")


def test_a_kind_has_one_policy() -> None:
    with pytest.raises(ValueError, match="'receipt=hold': name each kind"):
        resent_kinds("receipt=resend,receipt=hold")


def test_the_longest_replay_includes_the_segment_of_a_request() -> None:
    assert longest_replay_ms(7 * 24 * HOUR_MS, 24 * HOUR_MS) == 8 * 24 * HOUR_MS + MARGIN_MS
    assert longest_replay_ms(0, 5) == 5 + MARGIN_MS


def test_requests_that_never_expire_are_refused() -> None:
    with pytest.raises(UnsafeSettingsError, match=r"effects\.requests has retention\.ms=-1"):
        longest_replay_ms(-1, 24 * HOUR_MS)


def test_the_catalogues_own_topic_can_be_remembered() -> None:
    config = BY_NAME[EFFECTS_REQUESTS].settings()
    assert longest_replay_ms(int(config["retention.ms"]), int(config["segment.ms"])) == 193 * HOUR_MS


@pytest.mark.parametrize(("retention_h", "memory_h"), [(0.0, 48), (48.0, 48), (48.5, 48.5), (1000.0, 1000)])
def test_marks_live_as_long_as_set_and_at_least_the_longest_replay(retention_h: float, memory_h: float) -> None:
    assert memory_ms(with_(retention_h=retention_h), 48 * HOUR_MS) == memory_h * HOUR_MS


@pytest.mark.parametrize("retention_h", [47.99, 1.0, -1.0])
def test_a_memory_shorter_than_the_longest_replay_is_refused(retention_h: float) -> None:
    message = rf"ONCE_OUTBOX_RETENTION_H is {retention_h:g}, and effects\.requests can be replayed for 48 h"
    with pytest.raises(UnsafeSettingsError, match=message):
        memory_ms(with_(retention_h=retention_h), 48 * HOUR_MS)


def test_effects_and_buckets_follow_from_rate_and_retention() -> None:
    capacity = Capacity(10.0, HOUR_MS, 6)
    assert capacity.effects == 36_000
    assert capacity.buckets == 36_000 / 6 / EFFECTS_PER_BUCKET
    assert Capacity(0.001, 1000, 6).buckets == 1


def test_the_defaults_fit_into_the_redis_that_is_shipped() -> None:
    config = BY_NAME[EFFECTS_REQUESTS].settings()
    longest_ms = longest_replay_ms(int(config["retention.ms"]), int(config["segment.ms"]))
    capacity = Capacity(SETTINGS.rate_per_s, memory_ms(SETTINGS, longest_ms), InstallationSettings.partitions)
    shipped = (ROOT / "deploy" / "compose" / "files" / "redis.conf").read_text(), redis_config(1, Path("data"))
    for text in shipped:
        [megabytes] = re.findall(r"^maxmemory (\d+)mb$", text, re.MULTILINE)
        raise_if_too_small(capacity, int(megabytes) << 20, 1)


NEEDED = 36_000 * BYTES_PER_EFFECT


@pytest.mark.parametrize(("limit", "machine"), [(NEEDED, 1), (0, NEEDED)])
def test_a_plan_that_fits_is_accepted(limit: int, machine: int) -> None:
    raise_if_too_small(Capacity(10.0, HOUR_MS, 6), limit, machine)


@pytest.mark.parametrize(
    ("limit", "machine", "has"),
    [(NEEDED // 2, 10**12, r"1 MB \(maxmemory\)"), (0, NEEDED // 2, r"1 MB \(its whole machine\)")],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_figures(limit: int, machine: int, has: str) -> None:
    needs = r"ONCE_OUTBOX_RATE is 10: 36000 effects in 1 h, of 60 bytes each, are 2 MB"
    with pytest.raises(UnsafeSettingsError, match=f"{needs}, and Redis has {has}; .* lower the rate to 5, "):
        raise_if_too_small(Capacity(10.0, HOUR_MS, 6), limit, machine)


def test_the_table_of_the_readme_follows_from_the_bytes_of_an_effect() -> None:
    text = (ROOT / "services" / "outbox" / "README.md").read_text()
    rows = re.findall(r"\| (\d+) h \| ([\d,]+) \| ([\d.]+)/s \|", text)
    assert len(rows) == 3
    for hours, a_day, rate in rows:
        effects = 1_000_000_000 / BYTES_PER_EFFECT
        assert int(a_day.replace(",", "")) == int(effects / int(hours) * 24)
        assert float(rate) == round(effects / int(hours) / 3600, 1)
        raise_if_too_small(Capacity(float(rate) * 0.99, int(hours) * HOUR_MS, 6), 1_000_000_000, 1)
