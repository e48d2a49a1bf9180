"""The settings that exactly-once depends on. Pure.

A setting that would break the guarantee is refused at start-up, with the reason, before it can cause harm.
"""

from collections.abc import Iterable
from typing import Protocol

from shared.eos.errors import UnsafeSettingsError


class SafetySettings(Protocol):
    @property
    def transactional_id(self) -> str: ...
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def transaction_open_ms(self) -> int: ...


def transactional_id(pattern: str, service: str, topic: str, partition: int) -> str:
    return pattern.format(service=service, topic=topic, partition=partition)


def refuse_unsafe(settings: SafetySettings, service: str, inputs: Iterable[tuple[str, int]]) -> None:
    """Raise UnsafeSettingsError naming every unsafe setting at once, each with its reason.

    `inputs` are all input partitions, as (topic, partition).
    """
    reasons = list(_reasons(settings, service, list(inputs)))
    if reasons:
        raise UnsafeSettingsError("; ".join(reasons))


def refuse_timeout_above(settings: SafetySettings, broker_max_ms: int) -> None:
    """Raise UnsafeSettingsError if the transaction timeout is above the brokers' maximum.

    The brokers would answer InitProducerId with INVALID_TRANSACTION_TIMEOUT.
    """
    if settings.transaction_timeout_ms > broker_max_ms:
        raise UnsafeSettingsError(
            f"ONCE_TRANSACTION_TIMEOUT_MS is {settings.transaction_timeout_ms}, above the brokers' "
            f"transaction.max.timeout.ms of {broker_max_ms}: lower it"
        )


def _reasons(settings: SafetySettings, service: str, inputs: list[tuple[str, int]]) -> Iterable[str]:
    if settings.transaction_timeout_ms <= 2 * settings.transaction_open_ms:
        yield (
            f"ONCE_TRANSACTION_TIMEOUT_MS is {settings.transaction_timeout_ms}: at least twice "
            f"ONCE_TRANSACTION_OPEN_MS ({settings.transaction_open_ms}), or the broker aborts transactions at work"
        )
    try:
        ids = [transactional_id(settings.transactional_id, service, topic, partition) for topic, partition in inputs]
        other = {transactional_id(settings.transactional_id, f"not-{service}", topic, p) for topic, p in inputs}
    except (KeyError, IndexError, ValueError):
        yield (
            f"ONCE_TRANSACTIONAL_ID is {settings.transactional_id!r}: only {{service}}, {{topic}} and {{partition}} "
            "may appear in it"
        )
        return
    if len(set(ids)) < len(ids) or other & set(ids):
        yield (
            f"ONCE_TRANSACTIONAL_ID is {settings.transactional_id!r}, not unique per service and input partition: two "
            "producers would fence each other, and a zombie's offsets would not be fenced; put {service}, {topic} and "
            "{partition} into it"
        )
