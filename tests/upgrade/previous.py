"""Services of the previous version, from `previous.tar.xz`.

That version has a producer with a transactional.id of its own for each input partition. Its instances are static
members of classic groups. The archive has what its services import, from commit 7c0b508:

    git archive 7c0b508 shared services/__init__.py services/{ingest,transform,ledger,outbox} | xz -9e > previous.tar.xz
"""

import sys
import tarfile
from pathlib import Path
from typing import Final

from deploy.local.process import ManagedProcess
from tests.harness import Service

ARCHIVE: Final = Path(__file__).with_name("previous.tar.xz")


def unpack(directory: Path) -> Path:
    """Unpack the previous version into a directory, and return it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def previous(service: Service, root: Path) -> Service:
    """Have a service that is not started yet run the previous version.

    Args:
        service: as the harness makes it.
        root: where `unpack` left that version.
    """
    present = service.process
    service.process = ManagedProcess(
        f"{present.name}-previous",
        [sys.executable, "-m", f"services.{service.name}"],
        {**present.env, "PYTHONPATH": str(root)},
        present.log_path.with_suffix(".previous.log"),
        cwd=root,
    )
    return service
