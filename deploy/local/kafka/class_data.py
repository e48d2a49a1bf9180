"""Path of the brokers' class data archive: their classes as a JVM has them in memory, in a file that each broker maps.

With it a broker starts in about half of the time. Invariant: an archive is of one Java and one set of jars, and a
broker that finds none that fits starts without. `archive` makes it. Source: JEP 350.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path


def archive_path(java: str, classpath: str) -> Path:
    """Path of the archive for these, whether it was made or not: next to the packages of this installation.

    Args:
        java: the program.
        classpath: as the brokers have it.
    """
    described = hashlib.sha256()
    for path in (Path(shutil.which(java) or java).resolve(), *map(Path, classpath.split(os.pathsep))):
        stat = path.stat()
        described.update(f"{path}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return Path(sys.prefix) / "share" / "once" / f"brokers-{described.hexdigest()[:16]}.jsa"


def use(archive: Path) -> Iterable[str]:
    """Options of a JVM that maps the archive, if it is there; it ignores an unsuitable archive without a message."""
    if archive.exists():
        yield f"-XX:SharedArchiveFile={archive}"
        yield "-Xlog:disable"
        yield "-Xlog:all=error:stderr"


def make(archive: Path) -> Iterable[str]:
    """Options of a JVM that writes the archive when it ends."""
    yield f"-XX:ArchiveClassesAtExit={archive}"
    yield "-Xlog:disable"
    yield "-Xlog:all=error:stderr"
