"""Makes what is missing of everyone's credentials, each holder's in a folder of its own: a container that works once.

What holds here: what exists is kept, so that a second `docker compose up` changes nothing; a file is there wholly or
not at all, and readable by its owner and the group of the readers alone; nothing is printed but names of files.

`python -m deploy.compose.credentials ROOT` writes ROOT/HOLDER/FILE.
"""

import base64
import os
import secrets
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.compose import places

_MODE: Final = 0o440
_KEY_BYTES: Final = 32

CLUSTER_ID: Final = "cluster.id"
WEBHOOK_KEY: Final = "webhook.key"
PASSWORD: Final = "password"  # noqa: S105 # the name of a file


def make(root: Path) -> list[Path]:
    """Make what is missing below `root`; returns the files made."""
    made = _shared(root, CLUSTER_ID, places.BROKERS, cluster_id)
    made += _shared(root, WEBHOOK_KEY, ["outbox"], _random)
    made += _shared(root, PASSWORD, [places.GRAFANA], _random)
    return made


def cluster_id() -> str:
    """A random id of a cluster, as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _random() -> str:
    return secrets.token_hex(_KEY_BYTES)


def _shared(root: Path, name: str, holders: "list[str] | tuple[str, ...]", new: Callable[[], str]) -> list[Path]:
    """One value that all these holders have: that of the first who has it, else a new one."""
    paths = [root / holder / name for holder in holders]
    known = next((path.read_text() for path in paths if path.exists()), None)
    value = new() if known is None else known
    missing = [path for path in paths if not path.exists()]
    for path in missing:
        write(path, value.encode())
    return missing


def write(path: Path, data: bytes) -> None:
    """Write a file in one step, in place of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    new.chmod(_MODE)  # whatever the umask took away
    new.replace(path)


def main(root: Path) -> int:
    """Make what is missing, saying what on stdout."""
    made = make(root)
    for path in made:
        print(f"credentials: {path.relative_to(root)} made")
    print(f"credentials: {len(made)} made, the others were there", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
