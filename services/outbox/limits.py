"""Settings that the outbox's guarantee depends on, refused at start-up with the reason. Pure."""

import math
from typing import Final, NamedTuple

from services.outbox.domain import Policy
from shared.eos.errors import UnsafeSettingsError
from shared.events.effects import EffectKind
from shared.settings import OutboxSettings

MARGIN_MS = 3_600_000  # a broker looks for expired segments every five minutes, and clocks differ
HOLD, RESEND = "hold", "resend"
HOUR_MS = 3_600_000
BYTES_PER_EFFECT: Final = 60
"""Redis' memory for a remembered effect at most, tables and expiry included, in buckets filled as planned."""
EFFECTS_PER_BUCKET: Final = 48
"""Planned for. Redis keeps a bucket small up to twice as many, and a small one is searched and cleared cheaply."""


class Capacity(NamedTuple):
    """How many effects Redis is planned to remember."""

    rate_per_s: float  # effects a second, on average
    retention_ms: int  # how long each is remembered
    partitions: int

    @property
    def effects(self) -> int:
        """Of all partitions, at any time."""
        return math.ceil(self.rate_per_s * self.retention_ms / 1000)

    @property
    def buckets(self) -> int:
        """Of each partition."""
        return math.ceil(self.effects / self.partitions / EFFECTS_PER_BUCKET)


def raise_if_too_small(capacity: Capacity, limit_bytes: int, machine_bytes: int) -> None:
    """Raise UnsafeSettingsError if the planned effects do not fit into Redis' memory.

    Args:
        capacity: the plan.
        limit_bytes: maxmemory; 0 for none.
        machine_bytes: the memory of Redis' machine, which is the limit then.
    """
    available = limit_bytes or machine_bytes
    needed = capacity.effects * BYTES_PER_EFFECT
    if needed <= available:
        return
    hours = capacity.retention_ms / HOUR_MS
    fits = available / BYTES_PER_EFFECT / capacity.retention_ms * 1000
    raise UnsafeSettingsError(
        f"ONCE_OUTBOX_RATE is {capacity.rate_per_s:g}: {capacity.effects} effects in {hours:g} h, of "
        f"{BYTES_PER_EFFECT} bytes each, are {needed / 1e6:.0f} MB, and Redis has {available / 1e6:.0f} MB "
        f"({'maxmemory' if limit_bytes else 'its whole machine'}); give it more, lower the rate to {fits:.2g}, or "
        "keep effects.requests for a shorter time"
    )


def longest_replay_ms(retention_ms: int, segment_ms: int) -> int:
    """The greatest age of a request that is read once more, from the topic's retention.ms and segment.ms.

    A record expires with its segment, after the segment's last record. Raises UnsafeSettingsError if requests never
    expire: then no memory of effects is long enough.
    """
    if retention_ms < 0:
        raise UnsafeSettingsError(
            "effects.requests has retention.ms=-1: a request could be replayed for ever, and Redis would have to "
            "remember for ever; give the topic the retention of docs/topics.md"
        )
    return retention_ms + segment_ms + MARGIN_MS


def memory_ms(settings: OutboxSettings, longest_ms: int) -> int:
    """How long Redis must remember an effect; UnsafeSettingsError if the setting is shorter than the longest replay."""
    chosen_ms = int(settings.retention_h * HOUR_MS) or longest_ms
    if chosen_ms < longest_ms:
        raise UnsafeSettingsError(
            f"ONCE_OUTBOX_RETENTION_H is {settings.retention_h:g}, and effects.requests can be replayed for "
            f"{longest_ms / HOUR_MS:g} h: an effect forgotten before would be made again; set it to that or to 0"
        )
    return chosen_ms


def resent_kinds(setting: str) -> frozenset[str]:
    """The kinds that are sent again when in doubt, from `kind=hold|resend,...`; ValueError says what to change."""
    chosen: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        kind, _, policy = part.partition("=")
        if kind not in set(EffectKind) or policy not in {HOLD, RESEND} or kind in chosen:
            raise ValueError(
                f"ONCE_OUTBOX_IN_DOUBT has {part!r}: name each kind of {', '.join(EffectKind)} once at most, as in "
                f"receipt={RESEND}"
            )
        chosen[kind] = policy
    return frozenset(kind for kind, policy in chosen.items() if policy == RESEND)


def policy_of(settings: OutboxSettings) -> Policy:
    """How effects are tried; UnsafeSettingsError names every setting that cannot be used."""
    reasons = []
    resent: frozenset[str] = frozenset()
    try:
        resent = resent_kinds(settings.in_doubt)
    except ValueError as error:
        reasons.append(str(error))
    if settings.lease_s < 2 * settings.call_timeout_s:
        reasons.append(
            f"ONCE_OUTBOX_LEASE_S is {settings.lease_s:g}: at least twice ONCE_OUTBOX_CALL_TIMEOUT_S "
            f"({settings.call_timeout_s:g}), or a call outlives its claim"
        )
    if settings.call_timeout_s >= settings.stop_deadline_s:
        reasons.append(
            f"ONCE_OUTBOX_CALL_TIMEOUT_S is {settings.call_timeout_s:g}: below ONCE_STOP_DEADLINE_S "
            f"({settings.stop_deadline_s:g}), or a stop leaves calls in doubt"
        )
    for variable, value in (
        ("ONCE_OUTBOX_CALL_TIMEOUT_S", settings.call_timeout_s),
        ("ONCE_REDIS_TIMEOUT_S", settings.redis_timeout_s),
        ("ONCE_OUTBOX_RATE", settings.rate_per_s),
        ("ONCE_OUTBOX_BATCH_MAX", settings.batch_max),
        ("ONCE_OUTBOX_CALLS_MAX", settings.calls_max),
        ("ONCE_OUTBOX_LANE_CALLS_MAX", settings.lane_calls_max),
        ("ONCE_OUTBOX_WAITING_MAX", settings.waiting_max),
        ("ONCE_OUTBOX_RETRY_FIRST_S", settings.retry_first_s),
        ("ONCE_OUTBOX_CIRCUIT_FAILURES", settings.circuit_failures),
    ):
        if value <= 0:
            reasons.append(f"{variable} is {value:g}: set it above 0")
    if settings.disable_after_h < 0:
        reasons.append(f"ONCE_OUTBOX_DISABLE_AFTER_H is {settings.disable_after_h:g}: set it to 0 or above")
    if settings.retry_max_s < settings.retry_first_s:
        reasons.append("ONCE_OUTBOX_RETRY_MAX_S is below ONCE_OUTBOX_RETRY_FIRST_S: raise it")
    if reasons:
        raise UnsafeSettingsError("; ".join(reasons))
    return Policy(
        retry_first_ms=int(settings.retry_first_s * 1000),
        retry_max_ms=int(settings.retry_max_s * 1000),
        retry_deadline_ms=int(settings.retry_deadline_s * 1000),
        resent_kinds=resent,
    )
