"""Jars of the brokers, their JMX agent, MirrorMaker 2 and Spark's Kafka source, exactly as locked; and class archives.

`jgo lock` made each lock from the `jgo.toml` next to it. Only jars of the lock are fetched; nothing is resolved.
jgo downloads into Maven's own cache in the user's home (`~/.m2/repository`), which other tools share. It checks a
download against the repository's own sha1 only and a cached jar not at all, so this module checks each jar's sha256.

An archive has the classes of a broker, or of Spark's driver, as a JVM has them in memory, in a file that the next one
maps (JEP 350). It starts in half of the time with it. `deploy.local.archives` makes both. Invariant: an archive is of
one Java and one set of jars, and a JVM that finds none that fits starts without.

Run `python -m deploy.local.jars` to fetch everything ahead of time; progress goes to stderr.
"""

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LOCK_PATH = Path(__file__).with_name("jgo.lock.toml")
"""The brokers' jars."""
JMX_LOCK_PATH = Path(__file__).parents[1] / "prometheus" / "jgo.lock.toml"
"""The brokers' JMX agent, which is on no classpath: it brings libraries of its own."""
SPARK_LOCK_PATH = Path(__file__).parents[1] / "spark" / "jgo.lock.toml"
"""The jars of Spark's Kafka source, those that pyspark brings itself included."""
MIRROR_LOCK_PATH = Path(__file__).parents[1] / "mirror" / "jgo.lock.toml"
"""The jars of MirrorMaker 2; most are the brokers' as well."""
_DOWNLOADS_AT_ONCE = 8


class JarError(RuntimeError):
    """A jar of the lock cannot be downloaded, or differs from the lock."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One entry of a lock: Maven coordinates, with an empty classifier for most, and the file's sha256 in hex."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file_name(self) -> str:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.jar"

    @property
    def coordinates(self) -> str:
        """The coordinates as Maven writes them."""
        parts = [self.group, self.artifact, self.version, self.classifier]
        return ":".join(part for part in parts if part)


def parse_lock(text: str) -> tuple[LockedJar, ...]:
    """The jars of a jgo lock file's text, each once; JarError where one has no sha256, or there is none at all."""
    jars: dict[LockedJar, None] = {}
    for entry in tomllib.loads(text).get("dependencies", []):
        jar = LockedJar(
            entry["groupId"],
            entry["artifactId"],
            entry["version"],
            entry.get("classifier", ""),
            entry.get("sha256", ""),
        )
        if not jar.sha256:
            raise JarError(f"{jar.coordinates} has no sha256 in the lock")
        jars[jar] = None
    if not jars:
        raise JarError("the lock names no jars")
    return tuple(jars)


def resolve(lock: Path = LOCK_PATH, besides: frozenset[str] = frozenset()) -> list[Path]:
    """Return the paths of all jars of a lock in its order, but for files of the names in `besides`.

    Raises:
        JarError: a jar that is not in the cache cannot be downloaded, or differs from the lock even when it is new.
    """
    # jgo takes 0.3 s to import, and most commands never start a broker.
    from jgo.config import GlobalSettings  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415

    settings = GlobalSettings.load()  # the user's own mirror and cache, if one is configured
    context = MavenContext(repo_cache=settings.repo_cache, remote_repos=settings.repositories or None)

    def one(jar: LockedJar) -> Path:
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        artifact = component.artifact(classifier=jar.classifier)
        for _ in range(2):  # a broken file in the cache is replaced once
            try:
                path = Path(artifact.resolve())
            except (RuntimeError, OSError) as error:
                raise JarError(f"{jar.coordinates} cannot be downloaded: {error}") from error
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found == jar.sha256:
                return path
            print(f"{path} is not the locked jar; fetching it again", file=sys.stderr)
            path.unlink()
        raise JarError(f"{jar.coordinates} has sha256 {found}, but the lock says {jar.sha256}")

    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        return list(pool.map(one, [jar for jar in parse_lock(lock.read_text()) if jar.file_name not in besides]))


def classpath(lock: Path = LOCK_PATH) -> str:
    """The classpath of a lock, the brokers' by default; raises as `resolve`."""
    return os.pathsep.join(map(str, resolve(lock)))


def jmx_agent() -> Path:
    """The jar of the JMX agent; raises as `resolve`."""
    (agent,) = resolve(JMX_LOCK_PATH)
    return agent


def spark_jars() -> list[Path]:
    """The jars that Spark needs to read Kafka, and that pyspark does not bring itself; raises as `resolve`."""
    brought = frozenset(path.name for path in _brought())
    return resolve(SPARK_LOCK_PATH, besides=brought)


def _brought() -> list[Path]:
    pyspark = find_spec("pyspark")  # not imported for the name of a folder
    if pyspark is None or pyspark.origin is None:
        raise JarError("pyspark is not installed: run make setup")
    return sorted((Path(pyspark.origin).parent / "jars").glob("*.jar"))


def archive_path(java: str, brokers_classpath: str) -> Path:
    """Path of the archive of a Java and a classpath, made or not: in the user's cache, like the jars that it is of."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "once" / _archive_name("brokers", java, map(Path, brokers_classpath.split(os.pathsep)))


def spark_archive_path() -> Path | None:
    """Path of the archive of Spark's classes, made or not: in the environment that pyspark is installed in.

    None without a Java, which Spark looks for in JAVA_HOME first.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    return None if java is None else Path(sys.prefix) / _archive_name("spark", java, _brought())


def spark_archive_options() -> list[str]:
    """Options of a driver that maps the archive of Spark's classes; none if there is no archive."""
    archive = spark_archive_path()
    return [] if archive is None else archive_options(archive)


def _archive_name(of: str, java: str, jars: Iterable[Path]) -> str:
    described = hashlib.sha256()
    for path in (Path(shutil.which(java) or java).resolve(), *jars):
        stat = path.stat()
        described.update(f"{path}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return f"{of}-{described.hexdigest()[:16]}.jsa"


def archive_options(archive: Path, *, make: bool = False) -> list[str]:
    """Options of a JVM that maps the archive, if it is there, or that writes it when it ends.

    A JVM ignores an unsuitable archive, here without a message.
    """
    if not make and not archive.exists():
        return []
    flag = "ArchiveClassesAtExit" if make else "SharedArchiveFile"
    return [f"-XX:{flag}={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def main() -> int:
    """Fetch and check all jars, saying so on stderr; 1 when that fails."""
    print("jars: fetching the brokers', Spark's and all others (70 MB when the cache is empty)", file=sys.stderr)
    try:
        paths = list(dict.fromkeys([*resolve(), jmx_agent(), *spark_jars(), *resolve(MIRROR_LOCK_PATH)]))
    except JarError as error:
        print(f"jars: {error}", file=sys.stderr)
        return 1
    size_mb = sum(path.stat().st_size for path in paths) / 1e6
    print(f"jars: {len(paths)}, {size_mb:.0f} MB, all as locked, below {os.path.commonpath(paths)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
