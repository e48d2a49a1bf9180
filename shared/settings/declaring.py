"""How a setting is written down: a dataclass field with its variable, meaning, default and choices."""

from dataclasses import MISSING, dataclass, field
from typing import Any


def setting(variable: str, help_text: str, default: Any = MISSING, choices: tuple[str, ...] = ()) -> Any:
    """One setting.

    Args:
        variable: of the environment.
        help_text: what it is, for the documentation and for whoever set it wrong.
        default: without one it must be set.
        choices: what it may be; empty is anything of its type.
    """
    metadata = {"variable": variable, "help": help_text, "choices": choices}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every class of settings is."""
