"""Declaration of a setting: a dataclass field with its variable, meaning and default."""

from dataclasses import MISSING, dataclass, field
from typing import Any


def setting(variable: str, help_text: str, default: Any = MISSING) -> Any:
    """Declare one setting.

    Args:
        variable: name of the environment variable.
        help_text: its meaning, for the documentation and for the message when its value cannot be used.
        default: value when it is not set; a setting without a default is required.
    """
    metadata = {"variable": variable, "help": help_text}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of all settings."""
