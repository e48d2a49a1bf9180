"""Prerequisites of the local stack: a Java 17+ runtime, redis-server, Prometheus and its Redis exporter; and of .venv.

Standard library only, and nothing of this project: it runs under the system's python3 before .venv exists.

`python -m deploy.local.prerequisites` says what is missing and exits 1. With `--install`, as root on Debian or Ubuntu,
it installs that with apt, and starts no system service; elsewhere it prints the command to run and exits 1. `--tests`
asks for what only the tests need as well: Chromium, PostgreSQL and libfaketime.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

JAVA_VERSION_MIN = 17
_JAVA_PACKAGE = "openjdk-17-jre-headless"
_VENV_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
_VENV_PIP = Path(__file__).parents[2] / ".venv" / "bin" / "pip"
_POSTGRESQL = Path("/usr/lib/postgresql")
_LIBRARIES = Path("/usr/lib")
_POLICY = Path("/usr/sbin/policy-rc.d")
# invoke-rc.d asks this file before it starts a service; 101 means "do not". See Debian's policy-rc.d specification.
_POLICY_TEXT = "#!/bin/sh\n# Written for the time of one installation: no service is started by it.\nexit 101\n"


class PrerequisiteError(RuntimeError):
    """Something is missing; the message names the command that installs it."""


def _need(found: "str | None", what: str, package: str) -> str:
    if found is None:
        raise PrerequisiteError(f"{what} is needed. Run: {install_command([package])}")
    return found


def _program(package: str, *others: str) -> str:
    """Return the path of the package's program, or of another program that does the same."""
    return _need(next(filter(None, map(shutil.which, (package, *others))), None), package, package)


def require_java() -> str:
    """The path of a java that is new enough.

    This function and those below raise PrerequisiteError where it is missing.
    """
    java = _need(shutil.which("java"), f"Java {JAVA_VERSION_MIN} or newer", _JAVA_PACKAGE)
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # it prints to stderr
    version = java_major_version(shown.stderr)
    good = java if version >= JAVA_VERSION_MIN else None
    return _need(good, f"{java} is Java {version}, and {JAVA_VERSION_MIN} or newer", _JAVA_PACKAGE)


require_redis = partial(_program, "redis-server")
require_prometheus = partial(_program, "prometheus")
require_redis_exporter = partial(_program, "prometheus-redis-exporter")
require_chromium = partial(_program, "chromium", "chromium-browser", "google-chrome")


def require_ensurepip() -> str:
    """The module by which venv installs pip, unless .venv has one. Debian has it in a package of its own."""
    found = _VENV_PIP if _VENV_PIP.exists() else importlib.util.find_spec("ensurepip")
    return _need(None if found is None else str(found), "Python's ensurepip", _VENV_PACKAGE)


def require_postgresql(program: str = "postgres") -> str:
    """The path of one of PostgreSQL's programs. Debian keeps the server's out of PATH."""
    kept = sorted(_POSTGRESQL.glob(f"*/bin/{program}"), reverse=True)
    return _need(shutil.which(program) or next(map(str, kept), None), program, "postgresql")


def require_faketime() -> str:
    """The path of the library that gives a program a clock that is wrong."""
    return _need(next(map(str, _LIBRARIES.glob("*/faketime/libfaketimeMT.so.1")), None), "libfaketime", "libfaketime")


def java_major_version(text: str) -> int:
    """The major version in the output of `java -version`; 0 when there is none. 1.8 counts as 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def install_command(packages: "list[str]") -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y {' '.join(packages)}"


def missing_packages(*, tests: bool = False) -> "list[str]":
    """The Debian packages of what is missing, in a fixed order; with `tests`, of what only the tests need as well."""
    needed: dict[str, Callable[[], str]] = {
        _VENV_PACKAGE: require_ensurepip,
        _JAVA_PACKAGE: require_java,
        "redis-server": require_redis,
        "prometheus": require_prometheus,
        "prometheus-redis-exporter": require_redis_exporter,
    }
    if tests:
        needed.update(chromium=require_chromium, postgresql=require_postgresql, libfaketime=require_faketime)
    packages = []
    for package, require in needed.items():
        try:
            require()
        except PrerequisiteError:
            packages.append(package)
    return packages


def install(packages: "list[str]") -> int:
    """Install packages with apt, starting no services, and return apt's exit code. Progress goes to stderr."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_service_starts():
        for argv in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
            say("running " + " ".join(argv))
            with subprocess.Popen(argv, env=environment, stdout=sys.stderr) as apt:  # an exit waits for it as well
                if apt.wait() != 0:
                    return apt.returncode
    return 0


@contextlib.contextmanager
def _no_service_starts() -> "Iterator[None]":
    """Have a policy that starts no service, unless the operator has one; SIGTERM and SIGHUP exit, and remove it."""
    own = not _POLICY.exists() or _POLICY.read_text(errors="replace") == _POLICY_TEXT  # an installation was killed
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if own:
            _POLICY.write_text(_POLICY_TEXT)
            _POLICY.chmod(0o755)
        yield
    finally:
        if own:
            _POLICY.unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: "FrameType | None") -> None:
    sys.exit(128 + number)


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


def say(text: str) -> None:
    print(f"prerequisites: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
