"""How a setting is declared: a dataclass field with its variable, meaning and default."""

from dataclasses import MISSING, dataclass, field
from typing import Any


def setting(variable: str, help_text: str, default: Any = MISSING) -> Any:
    """Declare one setting.

    Args:
        variable: of the environment.
        help_text: its meaning, for the documentation and for the message when its value cannot be used.
        default: without one it must be set.
    """
    metadata = {"variable": variable, "help": help_text}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings."""
