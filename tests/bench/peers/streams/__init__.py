"""Kafka Streams: its jars as locked, and the classes compiled against them."""

import os
import shutil
import subprocess
from pathlib import Path

from deploy.local import jars, prerequisites

_HERE = Path(__file__).parent
_JDK_PACKAGE = "openjdk-17-jdk-headless"


def classpath(directory: Path, sources: Path = _HERE) -> str:
    """Compile the topologies into a folder, and return the classpath to run them.

    Args:
        directory: for the classes.
        sources: folder of other sources than the topologies.

    Raises:
        PrerequisiteError: there is no JDK, and it cannot be installed.
        JarError: a jar cannot be downloaded, or differs from the lock.
    """
    if shutil.which("javac") is None and (os.geteuid() != 0 or prerequisites.install([_JDK_PACKAGE]) != 0):
        command = prerequisites.install_command([_JDK_PACKAGE])
        raise prerequisites.PrerequisiteError(f"a JDK is needed to compile the peers. Run: {command}")
    path = os.pathsep.join(map(str, [directory, *jars.resolve(_HERE / "jgo.lock.toml")]))
    files = sorted(map(str, sources.glob("*.java")))
    subprocess.run(["javac", "-cp", path, "-d", str(directory), *files], check=True)
    return path
