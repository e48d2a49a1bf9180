"""Prerequisites of the local stack: a Java 17+ runtime, redis-server, Prometheus and its Redis exporter.

Standard library only, and nothing of this project: it runs under the system's python3 before .venv exists.

`python -m deploy.local.prerequisites` says what is missing and exits 1. With `--install`, as root on Debian or Ubuntu,
it installs that with apt, and starts no system service; elsewhere it prints the command to run and exits 1. `--tests`
asks for what only the tests need as well: Chromium, PostgreSQL and libfaketime.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_VERSION_MIN = 17
_JAVA_PACKAGE = "openjdk-17-jre-headless"
# Each package has a program of its name
_REDIS_PACKAGE = "redis-server"
_PROMETHEUS_PACKAGE = "prometheus"
_REDIS_EXPORTER_PACKAGE = "prometheus-redis-exporter"
_CHROMIUM_PACKAGE = "chromium"
_POSTGRESQL_PACKAGE = "postgresql"
_POSTGRESQL = Path("/usr/lib/postgresql")
_LIBRARIES = Path("/usr/lib")
_FAKETIME_PACKAGE = "libfaketime"
_POLICY = Path("/usr/sbin/policy-rc.d")
# invoke-rc.d asks this file before it starts a service; 101 means "do not". See Debian's policy-rc.d specification.
_POLICY_TEXT = "#!/bin/sh\n# Written for the time of one installation: no service is started by it.\nexit 101\n"


class PrerequisiteError(RuntimeError):
    """Something is missing; the message names the command that installs it."""


def require_java() -> str:
    """The path of a java that is new enough.

    Raises:
        PrerequisiteError: none is on PATH, or it is too old.
    """
    java = shutil.which("java")
    if java is None:
        raise PrerequisiteError(f"Java {JAVA_VERSION_MIN} or newer is needed. Run: {install_command([_JAVA_PACKAGE])}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # it prints to stderr
    version = java_major_version(shown.stderr)
    if version < JAVA_VERSION_MIN:
        raise PrerequisiteError(
            f"{java} is Java {version}, and {JAVA_VERSION_MIN} or newer is needed."
            f" Run: {install_command([_JAVA_PACKAGE])}"
        )
    return java


def require_redis() -> str:
    """The path of redis-server.

    Raises:
        PrerequisiteError: none is on PATH.
    """
    return _require(_REDIS_PACKAGE)


def require_prometheus() -> str:
    """The path of prometheus.

    Raises:
        PrerequisiteError: none is on PATH.
    """
    return _require(_PROMETHEUS_PACKAGE)


def require_redis_exporter() -> str:
    """The path of prometheus-redis-exporter.

    Raises:
        PrerequisiteError: none is on PATH.
    """
    return _require(_REDIS_EXPORTER_PACKAGE)


def require_chromium() -> str:
    """The path of a Chromium, for the page's tests.

    Raises:
        PrerequisiteError: none is on PATH.
    """
    return _require(_CHROMIUM_PACKAGE, "chromium-browser", "google-chrome")


def require_postgresql(program: str) -> str:
    """The path of one of PostgreSQL's programs, for the view's tests. Debian keeps the server's out of PATH.

    Raises:
        PrerequisiteError: it is not there.
    """
    kept = sorted(_POSTGRESQL.glob(f"*/bin/{program}"), reverse=True)
    found = shutil.which(program) or next(map(str, kept), None)
    if found is None:
        raise PrerequisiteError(f"{program} is needed. Run: {install_command([_POSTGRESQL_PACKAGE])}")
    return found


def require_faketime() -> str:
    """The path of the library that gives a program a clock that is wrong, for the tests.

    Raises:
        PrerequisiteError: it is not there.
    """
    found = next(map(str, _LIBRARIES.glob("*/faketime/libfaketimeMT.so.1")), None)
    if found is None:
        raise PrerequisiteError(f"libfaketime is needed. Run: {install_command([_FAKETIME_PACKAGE])}")
    return found


def java_major_version(text: str) -> int:
    """The major version in the output of `java -version`; 0 when there is none. 1.8 counts as 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def install_command(packages: "list[str]") -> str:
    """The command line that installs these Debian packages."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y {' '.join(packages)}"


def missing_packages(*, tests: bool = False) -> "list[str]":
    """The Debian packages of what is missing, in a fixed order.

    Args:
        tests: whether what only the tests need counts.
    """
    packages = []
    needed = [
        (_JAVA_PACKAGE, require_java),
        (_REDIS_PACKAGE, require_redis),
        (_PROMETHEUS_PACKAGE, require_prometheus),
        (_REDIS_EXPORTER_PACKAGE, require_redis_exporter),
    ]
    if tests:
        needed += [
            (_CHROMIUM_PACKAGE, require_chromium),
            (_POSTGRESQL_PACKAGE, lambda: require_postgresql("postgres")),
            (_FAKETIME_PACKAGE, require_faketime),
        ]
    for package, require in needed:
        try:
            require()
        except PrerequisiteError:
            packages.append(package)
    return packages


def install(packages: "list[str]") -> int:
    """Install packages with apt, starting no services, and return apt's exit code. Progress goes to stderr."""
    written = not _POLICY.exists()
    if written:
        _POLICY.write_text(_POLICY_TEXT)
        _POLICY.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for argv in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
            say("running " + " ".join(argv))
            done = subprocess.run(argv, env=environment, stdout=sys.stderr, check=False)
            if done.returncode != 0:
                return done.returncode
    finally:
        if written:
            with contextlib.suppress(FileNotFoundError):
                _POLICY.unlink()
    return 0


def main(arguments: "list[str]") -> int:
    """Check, and with --install also install; 0 when nothing is missing any more."""
    tests = "--tests" in arguments
    packages = missing_packages(tests=tests)
    if packages and "--install" in arguments and os.geteuid() == 0 and shutil.which("apt-get"):
        say("missing: " + ", ".join(packages))
        if install(packages) != 0:
            say("apt-get failed. Run: " + install_command(packages))
            return 1
        packages = missing_packages(tests=tests)
    if packages:
        say("missing: " + ", ".join(packages) + ". Run: " + install_command(packages))
        return 1
    say("Java, Redis and Prometheus are there" + (", Chromium, PostgreSQL and libfaketime as well" if tests else ""))
    return 0


def _require(package: str, *others: str) -> str:
    program = next(filter(None, map(shutil.which, (package, *others))), None)
    if program is None:
        raise PrerequisiteError(f"{package} is needed. Run: {install_command([package])}")
    return program


def say(text: str) -> None:
    """One line of progress."""
    print(f"prerequisites: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
