"""A real PostgreSQL for tests, on a free loopback port. It refuses to run as root, so it may run as another user."""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import URL

from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_postgresql
from deploy.local.process import ManagedProcess
from deploy.security.certificates import Authority
from services.balances.projection import database
from tests.harness import children, wait_until
from tests.tiers import mostly_full

USER = "once"
_RUN_AS = ("postgres", "nobody")
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",  # a test kills processes, not machines
    "shared_buffers": "32MB",
    "max_connections": "60",
}
_LEFT_BEHIND = "pre-existing shared memory block"
_LAST_LINES = 100  # of the log: each backend that notices adds one


class Postgres:
    """One server. After a kill and a restart, it has all committed data.

    Args:
        authority: issues the server's certificate, in the directory; None for a server without TLS and passwords.
        hosts: names of the certificate.
        password: of USER, with an authority.
    """

    def __init__(
        self,
        directory: Path,
        authority: Authority | None = None,
        hosts: tuple[str, ...] = (LOOPBACK,),
        password: str = "",
    ) -> None:
        self._directory = directory
        self._authority = authority
        self._hosts = hosts
        self._password = password
        self.port = free_ports(1)[0]
        tls = {} if authority is None else {"ssl": "on"}
        settings = [word for name, value in (_SETTINGS | tls).items() for word in ("-c", f"{name}={value}")]
        argv = [
            *_as_other_user(),
            require_postgresql("postgres"),
            "-D",
            str(directory),
            "-p",
            str(self.port),
            *settings,
        ]
        self.process = ManagedProcess("postgres", argv, {}, directory / "server.log")

    def start(self) -> None:
        """Start it and wait until it answers."""
        if not (self._directory / "PG_VERSION").exists():
            self._initialise()
        self.process.start()
        wait_until(self._answers, "postgres answers", 30)

    def kill(self) -> None:
        """Kill the server with SIGKILL, and its backends: left alone, they answer until they notice."""
        pid = self.process.pid
        backends = [] if pid is None else children(pid)
        self.process.kill()
        for backend in backends:
            with contextlib.suppress(ProcessLookupError):  # it has noticed
                os.kill(backend, signal.SIGKILL)

    def url(self, database: str = "postgres") -> URL:
        """A database's URL, as in ONCE_VIEW_DATABASE."""
        return URL.create("postgresql+psycopg", USER, host=LOOPBACK, port=self.port, database=database)

    def create(self, database: str) -> URL:
        """Create an empty database."""
        engine = sqlalchemy.create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f'CREATE DATABASE "{database}"')
        engine.dispose()
        return self.url(database)

    def _initialise(self) -> None:
        argv = [*_as_other_user(), require_postgresql("initdb"), "-D", str(self._directory), "-U", USER]
        auth = "trust" if self._authority is None else "scram-sha-256"
        argv += [f"--auth={auth}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        with tempfile.NamedTemporaryFile("w", prefix="once-password-") as file:
            file.write(self._password)
            file.flush()
            if self._authority is not None:
                _give(Path(file.name))
                argv.append(f"--pwfile={file.name}")
            subprocess.run(argv, check=True, capture_output=True, timeout=60, cwd="/")
        if self._authority is not None:
            (self._directory / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")
            self.identify()

    def identify(self) -> None:
        """Write the server's certificate and key."""
        assert self._authority is not None
        identity = self._authority.identity("postgres", self._hosts).read_bytes()
        for name in ("server.crt", "server.key"):
            path = self._directory / name
            path.write_bytes(identity)
            path.chmod(0o600)
            _give(path)

    def _answers(self) -> bool:
        if not self.process.running:
            # The backends of the killed server may still hold its memory
            assert _LEFT_BEHIND in self.process.log_tail(_LAST_LINES), self.process.log_tail()
            self.process.start()
        url = self.url().set(drivername="postgresql", password=self._password or None)
        try:
            psycopg.connect(url.render_as_string(hide_password=False), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


DATABASES = ("sqlite", "postgresql")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the whole run. A test that kills it starts it again."""
    with running_postgres() as running:
        yield running


@pytest.fixture(params=mostly_full(DATABASES, {"sqlite"}))
def view_url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """An empty database for a view, of each kind."""
    if request.param == "sqlite":
        return database.parse(f"sqlite:///{tmp_path / 'view.sqlite'}")
    server: Postgres = request.getfixturevalue("postgres")
    return server.create(f"view-{next(_numbers)}")


@contextmanager
def running_postgres(
    authority: Authority | None = None, hosts: tuple[str, ...] = (LOOPBACK,), password: str = ""
) -> Iterator[Postgres]:
    """A server in a directory of its own, as in Postgres; killed at the end, its directory removed."""
    # Not below pytest's directories, which other users may not enter
    directory = Path(tempfile.mkdtemp(prefix="once-postgres-"))
    _give(directory)
    server = Postgres(directory, authority, hosts, password)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _give(path: Path) -> None:
    """Make the server's user the owner."""
    if os.geteuid() == 0:
        shutil.chown(path, _other_user())


def _other_user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _RUN_AS if name in known)


def _as_other_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(_other_user())
    # With the death signal set again: the kernel clears it when the user changes
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=KILL", "--"]
