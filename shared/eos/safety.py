"""The settings that exactly-once depends on. Pure.

A setting that would break the guarantee is refused at start-up, with the reason, before it can cause harm.
"""

from typing import Protocol

from shared.eos.errors import UnsafeSettingsError


class SafetySettings(Protocol):
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def transaction_open_ms(self) -> int: ...


def refuse_unsafe(settings: SafetySettings) -> None:
    """Raise UnsafeSettingsError naming the unsafe setting and the reason."""
    if settings.transaction_timeout_ms <= 2 * settings.transaction_open_ms:
        raise UnsafeSettingsError(
            f"ONCE_TRANSACTION_TIMEOUT_MS is {settings.transaction_timeout_ms}: at least twice "
            f"ONCE_TRANSACTION_OPEN_MS ({settings.transaction_open_ms}), or the broker aborts transactions at work"
        )


def refuse_timeout_above(settings: SafetySettings, broker_max_ms: int) -> None:
    """Raise UnsafeSettingsError if the transaction timeout is above the brokers' maximum.

    The brokers would answer InitProducerId with INVALID_TRANSACTION_TIMEOUT.
    """
    if settings.transaction_timeout_ms > broker_max_ms:
        raise UnsafeSettingsError(
            f"ONCE_TRANSACTION_TIMEOUT_MS is {settings.transaction_timeout_ms}, above the brokers' "
            f"transaction.max.timeout.ms of {broker_max_ms}: lower it"
        )
