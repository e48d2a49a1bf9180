"""Every drill: those of deploy/drills/catalogue, a module for each family of scenarios, and those of alerts.

A module of the catalogue does not need this one: where Spark is not installed, drills of other families still run.
"""

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Final

from deploy.drills import catalogue
from deploy.drills.alerts import registry
from deploy.drills.drill import Drill

_MODULES: Final[tuple[ModuleType, ...]] = tuple(
    import_module(f"{catalogue.__name__}.{found.name}") for found in pkgutil.iter_modules(catalogue.__path__)
)
DRILLS: Final[tuple[Drill, ...]] = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if isinstance(value, Drill)),
        key=lambda one: one.order,
    )
)
"""Every row's drill, by row."""

ALERTS: Final = registry.DRILLS
"""Every alert's drill, in the order of a run."""

EVERY: Final = (*DRILLS, *ALERTS)
"""Every drill, those of alerts last."""


class NoSuchDrillError(LookupError):
    """No drill has such a row, name or tag."""


def find(names: tuple[str, ...], *, tag: str | None = None) -> list[Drill]:
    """Return drills by row or name, and those with a tag; alerts included.

    Raises:
        NoSuchDrillError: a name or the tag is unknown; the message names it.
    """
    known = {drill.name: drill for drill in EVERY} | {drill.key: drill for drill in EVERY}
    missing = [name for name in names if name not in known]
    if missing:
        raise NoSuchDrillError(f"no drill {', '.join(missing)}: `once drill list` names them")
    tagged = [drill for drill in EVERY if tag is not None and tag in drill.tags]
    if tag is not None and not tagged:
        raise NoSuchDrillError(f"no drill has the tag {tag}: there are {', '.join(tags())}")
    return list(dict.fromkeys([*(known[name] for name in names), *tagged]))


def tags() -> list[str]:
    """Return every tag."""
    return sorted({tag for drill in EVERY for tag in drill.tags})
