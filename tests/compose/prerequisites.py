"""Prerequisites of the verification: an engine with images, or what it takes to run one without an image registry.

Invariant: the machine's engine is used unchanged, and only if it has or can pull every image; otherwise a separate one
is started. Installed packages are printed, and stay installed; a compose plugin built here goes with its folder.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from deploy.local.prerequisites import install, install_command
from tests.compose.document import PUBLIC
from tests.compose.engine import Engine, VerifyError, run, say

PACKAGES: Final = {"dockerd": "docker.io", "docker": "docker.io", "debootstrap": "debootstrap", "iptables": "iptables"}
"""Debian's package of each program."""
COMPOSE: Final = "github.com/docker/compose/v5/cmd@v5.0.2"
_BUILD_S: Final = 1_200.0
_PULL_S: Final = 900.0
_DEBIAN: Final = Path("/etc/debian_version")


def has_images(engine: Engine) -> bool:
    """Whether every public image is on this engine, or can be pulled."""
    for image in PUBLIC:
        try:
            engine.docker("image", "inspect", "--format", "{{.Id}}", image)
        except VerifyError:
            try:
                engine.docker("pull", "--quiet", image, deadline_s=_PULL_S)
            except VerifyError as error:
                say(f"{image} is not available: {str(error).splitlines()[-1]}")
                return False
    return True


def missing_packages() -> list[str]:
    """The Debian packages of the programs that are not on PATH."""
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})


def install_engine() -> None:
    """Install what it takes to run an engine here.

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
    """The variables by which `docker compose` is found; built in `directory` where the machine has none.

    Raises:
        VerifyError: there is none, and no Go to build it with.
    """
    try:
        run(["docker", "compose", "version"])
    except VerifyError:
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
