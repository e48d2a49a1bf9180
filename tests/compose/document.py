"""docker-compose.yml as Compose reads it, with anchors and merges resolved, and the images that it names."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docker-compose.yml").read_text()
DOCUMENT: Final[dict[str, Any]] = yaml.safe_load(TEXT)
SERVICES: Final[dict[str, dict[str, Any]]] = DOCUMENT["services"]

BUILT: Final[dict[str, str]] = {
    service["image"]: service["build"]["dockerfile"] for service in SERVICES.values() if "build" in service
}
"""The Dockerfile of each image that is built here; its context is the project's root."""


def bases(dockerfile: str) -> list[str]:
    """Images that a Dockerfile builds on, by its path from the project's root."""
    return re.findall(r"^FROM (\S+)", (ROOT / dockerfile).read_text(), re.MULTILINE)


PUBLIC: Final = tuple(
    dict.fromkeys(
        [
            *(image for dockerfile in BUILT.values() for image in bases(dockerfile)),
            *(service["image"] for service in SERVICES.values() if service["image"] not in BUILT),
        ]
    )
)
"""Published images, to build on or to run."""


def of_profile(profile: str | None) -> tuple[str, ...]:
    """Services of a profile; None for those of `docker compose up` without a profile."""
    wanted = [] if profile is None else [profile]
    return tuple(name for name, service in SERVICES.items() if service.get("profiles", []) == wanted)


PROFILES: Final = tuple(dict.fromkeys(name for service in SERVICES.values() for name in service.get("profiles", [])))
"""Every profile."""


def environment(service: str) -> dict[str, str]:
    """Variables of a service, not interpolated."""
    return dict(SERVICES[service].get("environment", {}))


def mounts(service: str) -> dict[str, str]:
    """Source of each mount of a service, by its path in the container: a volume, or a path of the project."""
    return {path: source for source, path, *_ in (volume.split(":") for volume in SERVICES[service].get("volumes", []))}
