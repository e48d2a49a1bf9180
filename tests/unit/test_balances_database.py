"""Database URLs that the view accepts."""

import pytest

from services.balances.projection import database


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
