"""The locked parts of the system: Python packages, jars, and images. Read from the project's own files alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from deploy import PROJECT_ROOT
from deploy.local.jars import LockedJar, parse_lock

COMPOSE: Final = "docker-compose.yml"
DOCKERFILES: Final = "deploy/images/*.Dockerfile"
RUNTIME_LOCKS: Final = ("deploy/images/services.txt", "deploy/images/spark.txt")
"""What services, commands and the nightly job are installed from, in the images."""
PYTHON_LOCKS: Final = (
    "requirements.txt",
    *RUNTIME_LOCKS,
    "deploy/images/build.txt",
    "deploy/images/uv.txt",
    "deploy/supply/requirements.txt",
    "tests/fuzz/requirements.txt",
    "tests/bench/peers/requirements.txt",
)
JAR_LOCKS: Final = (
    "deploy/local/jgo.lock.toml",
    "deploy/prometheus/jgo.lock.toml",
    "deploy/spark/jgo.lock.toml",
    "deploy/mirror/jgo.lock.toml",
)

_PIN: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_FROM: Final = re.compile(r"^FROM (\S+)", re.MULTILINE)
_IMAGE: Final = re.compile(r"(?P<name>[^@:]+):(?P<tag>[^@]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?")


class Package(NamedTuple):
    """A pinned Python package."""

    name: str
    version: str


class Image(NamedTuple):
    """A published image, to build on or to run; `digest` is empty where none is pinned."""

    name: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        """Name and tag, without the digest."""
        return f"{self.name}:{self.tag}"


def packages(lock: str) -> list[Package]:
    """Return the packages of a lock, by its path from the project's root."""
    return [Package(*pin) for pin in _PIN.findall((PROJECT_ROOT / lock).read_text())]


def jars(lock: str) -> tuple[LockedJar, ...]:
    return parse_lock((PROJECT_ROOT / lock).read_text())


def image_files() -> list[Path]:
    """Return the files that name images."""
    return [PROJECT_ROOT / COMPOSE, *sorted(PROJECT_ROOT.glob(DOCKERFILES))]


def images(files: list[Path]) -> list[Image]:
    """Return the published images that these files name, each once; ValueError if one has no tag."""
    return [_image(text) for text in dict.fromkeys(text for file in files for text in _references(file))]


def _references(file: Path) -> Iterator[str]:
    if file.suffix != ".yml":
        yield from _FROM.findall(file.read_text())
        return
    services: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    built = {service["image"] for service in services.values() if "build" in service}
    yield from (service["image"] for service in services.values() if service["image"] not in built)


def _image(text: str) -> Image:
    found = _IMAGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} has no tag: name the version of the image")
    return Image(found["name"], found["tag"], found["digest"] or "")
