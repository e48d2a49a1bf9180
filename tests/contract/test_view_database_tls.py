"""The view's connections to a real PostgreSQL with TLS and passwords."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from deploy.local.ports import LOOPBACK
from deploy.security.certificates import Authority, open_authority
from deploy.security.files import secret
from services.balances.projection import database
from services.balances.projection.store import DatabaseAwayError, Store
from shared.settings import ViewSettings
from tests.partitions import PARTITIONS
from tests.postgres import USER, Postgres, running_postgres

PASSWORD = secret()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the server's certificate."""
    return open_authority(tmp_path_factory.mktemp("postgres-authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Postgres]:
    """A server that takes TLS connections with a password only."""
    with running_postgres(authority, password=PASSWORD) as running:
        yield running


@pytest.fixture
def password_file(tmp_path: Path, server: Postgres) -> Path:
    """A password file with the right password."""
    path = tmp_path / "passwords"
    write_password(path, PASSWORD)
    return path


def write_password(path: Path, password: str) -> None:
    path.touch(mode=0o600)
    path.write_text(f"*:*:*:{USER}:{password}\n")


def url_of(server: Postgres, ca_file: Path, password_file: Path, host: str = LOOPBACK) -> URL:
    url = server.url().set(host=host).render_as_string()
    return database.database_of(
        ViewSettings(
            bootstrap_servers="", database=url, database_ca_file=str(ca_file), database_password_file=str(password_file)
        )
    )


def opened(url: URL) -> None:
    """Open the view's tables; DatabaseAwayError if the connection fails."""
    store = Store(url, PARTITIONS)
    try:
        store.open("cluster")
    finally:
        store.close()


def test_readers_and_the_writer_use_tls_and_the_password_file(
    server: Postgres, authority: Authority, password_file: Path
) -> None:
    url = url_of(server, authority.ca_file, password_file)
    opened(url)
    for engine in (database.writing(url), database.reading(url)):
        with engine.connect() as connection:
            statement = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            is_tls, version = connection.exec_driver_sql(statement).one()
        engine.dispose()
        assert is_tls
        assert version in {"TLSv1.2", "TLSv1.3"}


def test_a_server_of_another_authority_is_not_connected_to(
    server: Postgres, password_file: Path, tmp_path: Path
) -> None:
    other = open_authority(tmp_path / "other")
    with pytest.raises(DatabaseAwayError, match="certificate verify failed"):
        opened(url_of(server, other.ca_file, password_file))


def test_a_server_of_another_name_is_not_connected_to(
    server: Postgres, authority: Authority, password_file: Path
) -> None:
    with pytest.raises(DatabaseAwayError, match='does not match host name "localhost"'):
        opened(url_of(server, authority.ca_file, password_file, host="localhost"))


def test_a_server_without_tls_is_not_connected_to(
    postgres: Postgres, authority: Authority, password_file: Path
) -> None:
    with pytest.raises(DatabaseAwayError, match="does not support SSL"):
        opened(url_of(postgres, authority.ca_file, password_file))


def test_a_password_that_is_replaced_counts_at_the_next_connection(
    server: Postgres, authority: Authority, password_file: Path
) -> None:
    url = url_of(server, authority.ca_file, password_file)
    write_password(password_file, "another-password")
    with pytest.raises(DatabaseAwayError, match="password authentication failed") as refused:
        opened(url)
    assert "another-password" not in str(refused.value)
    write_password(password_file, PASSWORD)
    opened(url)


def test_the_server_takes_no_connection_without_tls(server: Postgres) -> None:
    with pytest.raises(DatabaseAwayError, match="no pg_hba"):
        opened(server.url().update_query_dict({"sslmode": "disable"}))
