"""Database URLs that the view accepts."""

from pathlib import Path

import pytest

from services.balances.projection import database
from shared.settings import ViewSettings


def settings(url: str, ca_file: str | Path = "", password_file: str | Path = "") -> ViewSettings:
    return ViewSettings(
        bootstrap_servers="", database=url, database_ca_file=str(ca_file), database_password_file=str(password_file)
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sqlite:///view.sqlite", "sqlite:///view.sqlite"),
        ("sqlite+pysqlite:////var/lib/once/view", "sqlite:////var/lib/once/view"),
        ("postgresql://once@db/view", "postgresql+psycopg://once@db/view"),
        ("postgresql+psycopg://once:x@db:5433/view", "postgresql+psycopg://once:x@db:5433/view"),
    ],
)
def test_a_file_and_a_server_are_accepted(text: str, meant: str) -> None:
    assert database.parse(text).render_as_string(hide_password=False) == meant


@pytest.mark.parametrize(
    "text", ["", "view.sqlite", "sqlite://", "sqlite:///:memory:", "mysql://db/view", "postgresql+asyncpg://db/view"]
)
def test_other_databases_are_refused_with_what_to_set(text: str) -> None:
    with pytest.raises(ValueError, match="set ONCE_VIEW_DATABASE to sqlite:///FILE or postgresql"):
        database.parse(text)


def test_a_refusal_shows_no_password() -> None:
    with pytest.raises(ValueError, match="oracle") as refused:
        database.parse("oracle://once:hunter2@db/view")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///view.sqlite",
        "postgresql://once:x@127.0.0.1/view",
        "postgresql://once@localhost:5433/view",
        "postgresql://once@[::1]:5433/view",
        "postgresql://once@/view?host=/run/postgresql",
        "postgresql://once@/view?host=127.0.0.1:5433&host=[::1]:5434",
    ],
)
def test_a_local_database_needs_no_tls(url: str) -> None:
    assert database.database_of(settings(url)) == database.parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://once@db/view",
        "postgresql://once@10.2.0.7:5432/view",
        "postgresql://once@db/view?sslmode=require",
        "postgresql://once@127.0.0.1/view?host=db",
        "postgresql://once@127.0.0.1/view?hostaddr=10.2.0.7",
        "postgresql://once@/view?host=127.0.0.1:5432&host=db:5432",
        "postgresql://once@127.0.0.1,db/view",
        "postgresql://once@/view?service=ledger",
    ],
)
def test_a_database_beyond_loopback_needs_tls(url: str) -> None:
    with pytest.raises(ValueError, match="set ONCE_VIEW_DATABASE_CA_FILE, for TLS"):
        database.database_of(settings(url))


@pytest.mark.parametrize("url", ["postgresql://once:hunter2@db/view", "postgresql://once@db/view?password=hunter2"])
def test_a_password_in_a_url_beyond_loopback_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.touch()
    with pytest.raises(ValueError, match="put it into a file") as refused:
        database.database_of(settings(url, ca_file))
    assert "hunter2" not in str(refused.value)


def test_tls_verifies_the_servers_name_whatever_the_url_says(tmp_path: Path) -> None:
    ca_file, password_file = tmp_path / "ca.pem", tmp_path / "passwords"
    ca_file.touch()
    password_file.touch(mode=0o600)
    found = database.database_of(settings("postgresql://once@db/view?sslmode=disable", ca_file, password_file))
    assert dict(found.query) == {
        "sslmode": "verify-full",
        "sslrootcert": str(ca_file),
        "gssencmode": "disable",
        "passfile": str(password_file),
    }


def test_files_that_libpq_would_ignore_are_refused(tmp_path: Path) -> None:
    url, missing, shared = "postgresql://once@db/view", tmp_path / "missing", tmp_path / "shared"
    shared.touch(mode=0o640)
    with pytest.raises(ValueError, match=r"ONCE_VIEW_DATABASE_CA_FILE is .*missing, which cannot be read"):
        database.database_of(settings(url, missing))
    with pytest.raises(ValueError, match=r"ONCE_VIEW_DATABASE_PASSWORD_FILE is .*missing, which cannot be read"):
        database.database_of(settings(url, shared, missing))
    with pytest.raises(ValueError, match="chmod 600"):
        database.database_of(settings(url, shared, shared))
    with pytest.raises(ValueError, match="for PostgreSQL"):
        database.database_of(settings("sqlite:///view.sqlite", shared))
