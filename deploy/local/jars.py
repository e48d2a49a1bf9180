"""Jars of the brokers, their JMX agent and Spark's Kafka source: exactly those of a lock, each checked by its sha256.

`jgo lock` made each lock from the `jgo.toml` next to it. Only jars of the lock are fetched; nothing is resolved.
jgo downloads into Maven's own cache in the user's home (`~/.m2/repository`), where other tools share it; jgo checks a
download against the repository's own sha1 only and a cached jar not at all, which is why this module does both.

Run `python -m deploy.local.jars` to fetch everything ahead of time; progress goes to stderr.
"""

import hashlib
import sys
import tomllib
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
_DOWNLOADS_AT_ONCE = 8


class JarError(RuntimeError):
    """A jar of the lock cannot be downloaded, or differs from the lock."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One entry of the lock.

    Attributes:
        group, artifact, version, classifier: the Maven coordinates; classifier is empty for most.
        sha256: of the file, in hex.
    """

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of its file."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.jar"

    @property
    def coordinates(self) -> str:
        """The coordinates as Maven writes them."""
        parts = [self.group, self.artifact, self.version, self.classifier]
        return ":".join(part for part in parts if part)


def parse_lock(text: str) -> tuple[LockedJar, ...]:
    """Read the text of a jgo lock file; an entry that occurs twice is kept once.

    Raises:
        JarError: an entry has no sha256, or there is no entry at all.
    """
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


def lock_digest() -> str:
    """A short digest of the lock: it changes whenever a jar does."""
    return hashlib.sha256(LOCK_PATH.read_bytes()).hexdigest()[:12]


def resolve(lock: Path = LOCK_PATH, besides: frozenset[str] = frozenset()) -> list[Path]:
    """Return the paths of all jars, in the lock's order; those not in the cache are downloaded.

    Args:
        lock: of which jars.
        besides: names of files that are there already, and are left out.

    Raises:
        JarError: a jar cannot be downloaded, or differs from the lock even after a fresh download.
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


def jmx_agent() -> Path:
    """The jar of the JMX agent, downloaded if it is not in the cache.

    Raises:
        JarError: as for `resolve`.
    """
    (agent,) = resolve(JMX_LOCK_PATH)
    return agent


def spark_jars() -> list[Path]:
    """The jars that Spark needs to read Kafka, and that pyspark does not bring itself.

    Raises:
        JarError: as for `resolve`.
    """
    pyspark = find_spec("pyspark")  # not imported for the name of a folder
    if pyspark is None or pyspark.origin is None:
        raise JarError("pyspark is not installed: run make setup")
    brought = frozenset(path.name for path in (Path(pyspark.origin).parent / "jars").glob("*.jar"))
    return resolve(SPARK_LOCK_PATH, besides=brought)


def main() -> int:
    """Fetch and check all jars, saying so on stderr; 1 when that fails."""
    print("jars: fetching the brokers', their agent and Spark's (70 MB when the cache is empty)", file=sys.stderr)
    try:
        paths = [*resolve(), jmx_agent(), *spark_jars()]
    except JarError as error:
        print(f"jars: {error}", file=sys.stderr)
        return 1
    size_mb = sum(path.stat().st_size for path in paths) / 1e6
    print(f"jars: {len(paths)}, {size_mb:.0f} MB, all as locked, below {_common(paths)}", file=sys.stderr)
    return 0


def _common(paths: list[Path]) -> Path:
    return next(parent for parent in paths[0].parents if all(parent in path.parents for path in paths))


if __name__ == "__main__":
    sys.exit(main())
