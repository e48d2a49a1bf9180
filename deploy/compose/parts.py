"""What the services of docker-compose.yml are made of: limits, health, dependencies, mounts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from deploy.compose import images, places
from deploy.compose.yaml import MERGE, Document, Value

CONFINED: Final = "confined"
ONE_SHOT: Final = "one-shot"

Service = dict[str, Value]

COMPLETED: Final = "service_completed_successfully"
HEALTHY: Final = "service_healthy"

EXTENSIONS: Final[Document] = {
    "# What every container may not do, and how it is kept running.": None,
    f"x-{CONFINED}": {
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "unless-stopped",
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
    },
    "# The same for one that does its work once.": None,
    f"x-{ONE_SHOT}": {MERGE: [CONFINED], "restart": "no"},
}


def limits(memory: str, cpus: str, pids: int = 256) -> Document:
    """The most that a container takes.

    Args:
        memory: as Docker writes it.
        cpus: cores.
        pids: processes and threads.
    """
    return {"resources": {"limits": {"memory": memory, "cpus": cpus, "pids": pids}}}


def health(test: Sequence[str], *, start_s: int = 300) -> Document:
    """A health check.

    Args:
        test: as Docker takes it, CMD or CMD-SHELL first.
        start_s: failures within it do not count.
    """
    return {
        "test": list(test),
        # Each is a process of its own, and there are twenty containers
        "interval": "15s",
        "timeout": "10s",
        "retries": 4,
        "start_period": f"{start_s}s",
    }


def answers(url: str) -> list[str]:
    """A health check in images with busybox: the address answers 200."""
    return ["CMD", "wget", "-q", "-O", "/dev/null", url]


def ready(port: int, path: str = "/readyz") -> list[str]:
    """A health check in this project's images: the path answers 200."""
    # Isolated and without site-packages, it starts in a third of the time
    return ["CMD", "python", "-I", "-S", f"{places.PROGRAM}/deploy/compose/healthy.py", str(port), path]


def after(**conditions: str) -> Document:
    """depends_on, by condition; underscores in names stand for dashes."""
    return needs({name.replace("_", "-"): condition for name, condition in conditions.items()})


def needs(conditions: Mapping[str, str]) -> Document:
    """depends_on, by condition."""
    return {name: {"condition": condition} for name, condition in conditions.items()}


def credentials(holder: str) -> str:
    """The mount of a holder's own credentials."""
    return f"{places.credentials_volume(holder)}:{places.OWN}:ro"


def configuration(name: str) -> str:
    """The mount of a file of deploy/compose/files, under its name in CONFIG."""
    return f"./deploy/compose/files/{name}:{places.CONFIG / name}:ro"


def scratch(size: str = "16m", *, executable: bool = False) -> list[str]:
    """A /tmp in memory; `executable` for Java, which unpacks native libraries there."""
    return [f"/tmp:size={size},mode=1777,nosuid,nodev{',exec' if executable else ',noexec'}"]  # noqa: S108 # a container's


def built(image: str, *, builds: bool = False) -> Service:
    """The image of a service that is built here.

    Args:
        image: its name.
        builds: whether this service is the one that has it built; the others only use it.
    """
    user: Service = {"user": f"{images.ONCE_UID}:{images.ONCE_UID}"}
    # Never asked of a registry, where anybody could have put one under this name; a missing one is built all the same
    made: Service = {"image": image, "pull_policy": "never", **user}
    return made | {"build": {"context": ".", "dockerfile": images.BUILT[image]}} if builds else made
