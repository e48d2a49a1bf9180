"""A view's API on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from services.balances.projection import database
from tests.tiers import mostly_full
from tests.views import Site, View, database_in_english, serving


@pytest.fixture(params=mostly_full(["sqlite", "postgresql"], {"sqlite"}))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> sqlalchemy.URL:
    """An empty database."""
    if request.param == "sqlite":
        return database.parse(f"sqlite:///{tmp_path / 'view.db'}")
    return database_in_english(request.getfixturevalue("postgres"))


@pytest.fixture
def view(url: sqlalchemy.URL) -> Iterator[View]:
    made = View(url)
    made.fund()
    yield made
    made.close()


@pytest.fixture
async def site(view: View) -> AsyncIterator[Site]:
    async with serving(view) as made:
        yield made
