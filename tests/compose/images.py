"""Images of the verification: the machine's, or stand-ins if no image registry can be reached.

Invariant: the machine's engine is used unchanged, and only if it has or can pull every image. Installed packages are
printed, and stay installed. A stand-in has the name of the image that it replaces, and what docker-compose.yml and the
Dockerfiles rely on: programs, paths, users. Stand-ins are made of Debian's packages and of the jars that deploy/local
locks. They prove this project's own part of the images, and docker-compose.yml; not the published images.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from deploy.compose.engine import Engine, EngineError, run
from deploy.local.jars import JarError, resolve
from deploy.local.prerequisites import install, install_command
from tests.compose.document import PUBLIC
from tests.compose.engine import VerifyError, say

PACKAGES: Final = {"dockerd": "docker.io", "docker": "docker.io", "debootstrap": "debootstrap", "iptables": "iptables"}
"""Debian's package of each program."""
COMPOSE: Final = "github.com/docker/compose/v5/cmd@v5.0.2"
_DEBIAN: Final = Path("/etc/debian_version")
_PULL_S: Final = 900.0
_BUILD_S: Final = 1_200.0
_BOOTSTRAP_S: Final = 900.0

BASE: Final = "once-standin/debian:bookworm"
SUITE: Final = "bookworm"
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_APT: Final = "apt-get update && apt-get install -y --no-install-recommends"
_TIDY: Final = "rm -rf /var/lib/apt/lists/*"


class StandIn(NamedTuple):
    """Recipe of a stand-in.

    Attributes:
        packages: of Debian.
        more: further lines of its Dockerfile.
        prepare: puts files for these lines into the context's folder.
    """

    packages: str
    more: str = ""
    prepare: Callable[[Path], None] | None = None


def _certificates(context: Path) -> None:
    """Copy this machine's certificates, which package registries may need."""
    shutil.copy(_CERTIFICATES, context / _CERTIFICATES.name)


def _jars(context: Path) -> None:
    folder = context / "libs"
    folder.mkdir()
    try:
        for path in resolve():
            shutil.copy(path, folder)
    except JarError as error:
        raise VerifyError(str(error)) from error


_PYTHON: Final = f"""\
COPY {_CERTIFICATES.name} {_CERTIFICATES}
RUN ln -s /usr/bin/python3 /usr/local/bin/python
ENV PIP_CERT={_CERTIFICATES} SSL_CERT_FILE={_CERTIFICATES} REQUESTS_CA_BUNDLE={_CERTIFICATES} PIP_DEFAULT_TIMEOUT=180
"""
_JAVA: Final = "RUN mkdir /opt/java && cp -rL /usr/lib/jvm/java-17-openjdk-amd64 /opt/java/openjdk\n"
_KAFKA: Final = "COPY libs /opt/kafka/libs\nRUN ln -s /bin/busybox /usr/local/bin/nc\n"
_REDIS: Final = "RUN install --directory --owner 999 --group 999 /data\nWORKDIR /data\n"
_WGET: Final = "RUN ln -s /bin/busybox /usr/local/bin/wget\n"
_PROMETHEUS: Final = f"""\
{_WGET}RUN install --directory --owner 65534 --group 65534 /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
"""
_EXPORTER: Final = f'{_WGET}ENTRYPOINT ["/usr/bin/prometheus-redis-exporter"]\n'

_RECIPES: Final[Mapping[str, StandIn]] = {
    "python": StandIn("python3 python3-pip python3-venv ca-certificates", _PYTHON, _certificates),
    "eclipse-temurin": StandIn("openjdk-17-jre-headless", _JAVA),
    "apache/kafka": StandIn("openjdk-17-jre-headless busybox", _KAFKA, _jars),
    "redis": StandIn("redis-server", _REDIS),
    "prom/prometheus": StandIn("prometheus busybox", _PROMETHEUS),
    "oliver006/redis_exporter": StandIn("prometheus-redis-exporter busybox", _EXPORTER),
}

STAND_INS: Final = {image: _RECIPES[name] for image in PUBLIC if (name := image.partition(":")[0]) in _RECIPES}
"""By the name of the image, with its version."""

ABSENT: Final = tuple(image for image in PUBLIC if image not in STAND_INS)
"""Images without a stand-in."""


def has_images(engine: Engine) -> bool:
    """Whether every public image is on this engine, or can be pulled."""
    for image in PUBLIC:
        try:
            engine.docker("image", "inspect", "--format", "{{.Id}}", image)
        except EngineError:
            try:
                engine.docker("pull", "--quiet", image, deadline_s=_PULL_S)
            except EngineError as error:
                say(f"{image} is not available: {str(error).splitlines()[-1]}")
                return False
    return True


def missing_packages() -> list[str]:
    """The Debian packages of the programs that are not on PATH."""
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})


def install_engine() -> None:
    """Install the packages that an engine needs.

    Raises:
        VerifyError: the machine is not Debian, or this user may not install packages.
    """
    packages = missing_packages()
    if not _DEBIAN.exists() or os.geteuid() != 0:
        raise VerifyError(
            "no Docker engine with the images of docker-compose.yml is here, and stand-ins for them are built on Debian"
            " by root only; start Docker where a registry can be reached"
        )
    if packages:
        say(f"installing {', '.join(packages)}; they stay installed")
        if install(packages) != 0:
            raise VerifyError(f"apt-get failed; run: {install_command(packages)}")


def compose_plugin(directory: Path) -> dict[str, str]:
    """Variables that select `docker compose`; built in `directory` if the machine has none.

    Raises:
        VerifyError: there is none, and no Go to build it with.
    """
    try:
        run(["docker", "compose", "version"])
    except EngineError:
        return {"DOCKER_CONFIG": str(_build_plugin(directory))}
    return {}


def _build_plugin(directory: Path) -> Path:
    config = directory / "config"
    plugin = config / "cli-plugins" / "docker-compose"
    if shutil.which("go") is None:
        raise VerifyError("`docker compose` is needed: install the package docker-compose-plugin, or Go to build it")
    say(f"building docker compose from {COMPOSE}")
    binaries = directory / "bin"
    run(["go", "install", COMPOSE], environment={"GOBIN": str(binaries)}, deadline_s=_BUILD_S)
    plugin.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(binaries / "cmd", plugin)
    return config


def dockerfile(stand_in: StandIn) -> str:
    """The Dockerfile of a stand-in."""
    return f"FROM {BASE}\nRUN {_APT} {stand_in.packages} && {_TIDY}\n{stand_in.more}"


def build_stand_ins(engine: Engine, directory: Path) -> None:
    """Build the base from Debian's packages, and every stand-in.

    Args:
        engine: for the images.
        directory: for temporary files.

    Raises:
        VerifyError: an image cannot be made.
    """
    root = directory / "debian"
    say(f"making a Debian {SUITE} to build stand-ins on")
    run(["debootstrap", "--variant=minbase", SUITE, str(root)], deadline_s=_BOOTSTRAP_S)
    archive = directory / "debian.tar"
    run(["tar", "--create", "--file", str(archive), "--directory", str(root), "."], deadline_s=_BUILD_S)
    engine.docker("import", str(archive), BASE, deadline_s=_BUILD_S)
    archive.unlink()
    for image, stand_in in STAND_INS.items():
        say(f"building a stand-in for {image}")
        context = directory / image.replace("/", "-").replace(":", "-")
        context.mkdir()
        if stand_in.prepare is not None:
            stand_in.prepare(context)
        (context / "Dockerfile").write_text(dockerfile(stand_in))
        build(engine, image, context, context / "Dockerfile")


def build(engine: Engine, image: str, context: Path, file: Path) -> None:
    """Build an image; its build may use this machine's network.

    Raises:
        VerifyError: it cannot be built.
    """
    words = ["build", "--quiet", "--network", "host", "--tag", image, "--file", str(file), str(context)]
    engine.docker(*words, deadline_s=_BUILD_S)
