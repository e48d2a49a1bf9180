"""Reads of the database: one snapshot for each answer, by indexes, and again after an outage."""

import asyncio
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import Connection, delete, text
from sqlalchemy.exc import DBAPIError

from services.balances.api import queries, statements
from services.balances.api.parameters import Place
from services.balances.api.v1 import queries as v1
from services.balances.api.v1.parameters import DatedEntriesQuery, DatedPlace, OutcomesQuery
from services.balances.projection import database
from shared.events.postings import CREDIT, DEBIT, Entry, Posting
from tests.harness import eventually
from tests.ledgers import CREDITOR, DAY, DEBTOR, P, transfer
from tests.partitions import partition_for
from tests.postgres import Postgres
from tests.views import Site, View, database_in_english, serving


async def test_an_answer_and_its_positions_are_from_one_snapshot(site: Site) -> None:
    view = site.view
    view.ledger.send(transfer())
    view.take()

    def overtaken(connection: Connection) -> list[Any]:
        found = [queries.totals(connection)]
        view.ledger.send(transfer(f"p-{view.end(P)}"))
        view.take()
        found.append(queries.totals(connection))
        return found

    before = (await site.reader.read(queries.positions)).found
    (first, second), positions = await site.reader.read(overtaken)
    assert first == second
    assert positions == before
    assert (await site.reader.read(queries.positions)).found[P] == before[P] + 2


async def test_a_reader_cannot_write(site: Site) -> None:
    site.view.take()
    with pytest.raises(DBAPIError):
        site.reader._ask(lambda connection: connection.execute(delete(database.accounts)))
    assert (await site.ask(f"/api/accounts/{DEBTOR}"))[0] == 200


AFTER = DatedPlace(DAY, 2000, 1)
PLANS = {
    "account": statements.terms_of(DEBTOR),
    "balances": statements.balances_of(DEBTOR),
    "newest entries": statements.entries_of(DEBTOR, "EUR", "newest", None, 50),
    "next newest entries": statements.entries_of(DEBTOR, "EUR", "newest", Place(2000, 1), 50),
    "next oldest entries": statements.entries_of(DEBTOR, "EUR", "oldest", Place(2000, 1), 50),
    "payments": statements.events_of("p-1", None),
    "payment": statements.events_of("p-1", DEBTOR),
    "lines": statements.lines_of(P, 2),
    "reversal": statements.reversal_of("p-1", DEBTOR),
    "entries by date": v1.dated_entries_of(DEBTOR, "EUR", DatedEntriesQuery(since=DAY), None),
    "next entries by date": v1.dated_entries_of(DEBTOR, "EUR", DatedEntriesQuery(order="oldest"), AFTER),
    "entries of the house": v1.dated_entries_of(f"in-transit@{P}", "EUR", DatedEntriesQuery(), AFTER),
    "outcomes by date": v1.outcomes_of(OutcomesQuery(debtor=DEBTOR, to=DAY), None),
    "next outcomes by date": v1.outcomes_of(OutcomesQuery(debtor=DEBTOR), AFTER),
    "outcome": v1.outcomes_of(OutcomesQuery(debtor=DEBTOR, payment_id="p-1"), None),
    "credit legs": v1.credit_legs_of(DEBTOR, ["p-1", "p-2"]),
    "reversals": v1.reversals_of(DEBTOR, ["p-1", "p-2"]),
}


def many_rows(view: View) -> None:
    """Add enough rows to make an index worthwhile, most of them of one account and currency."""
    postings = [
        Posting(
            f"p-{number % 400}",
            DEBIT if number % 2 else CREDIT,
            DEBTOR,
            CREDITOR,
            (Entry(DEBTOR, "EUR", -1), Entry(f"in-transit@{P}", "EUR", 1)),
            DAY,
            reverses=f"p-{number}" if number % 20 == 0 else None,
        )
        for number in range(2000)
    ]
    for posting in postings:
        view.post(P, posting)
    view.take()
    rows = [{"account": f"a{n}", "partition": partition_for(f"a{n}")} for n in range(2000)]
    view.add(database.accounts, [row | {"closed": False, "owner": "operator", "version": 0} for row in rows])
    balance = {"currency": "EUR", "balance_minor": 0, "postings": 1, "last_offset": 0}
    view.add(database.balances, [row | balance for row in rows])


async def test_no_query_reads_a_whole_table(view: View) -> None:
    many_rows(view)
    is_sqlite = view.url.get_backend_name() == database.SQLITE
    explain, column = ("EXPLAIN QUERY PLAN", 3) if is_sqlite else ("EXPLAIN", 0)
    view.change(text("ANALYZE"))
    engine = database.reading(view.url)
    with engine.begin() as connection:
        for name, statement in PLANS.items():
            sql = statement.compile(engine, compile_kwargs={"literal_binds": True})
            plan = "\n".join(str(row[column]) for row in connection.execute(text(f"{explain} {sql}")))
            assert "SEARCH" in plan if is_sqlite else "Index" in plan, (name, plan)
            assert "SCAN" not in plan, (name, plan)
            assert "Seq Scan" not in plan, (name, plan)
            if "entries" in name or "by date" in name:  # there may be many after the page
                assert "TEMP B-TREE" not in plan, (name, plan)
                assert "Sort" not in plan, (name, plan)
    engine.dispose()


async def test_an_unreachable_server_is_503_until_it_is_back(postgres: Postgres) -> None:
    view = View(database_in_english(postgres))
    view.fund()
    view.take()
    async with serving(view) as site:
        before = await site.get(f"/api/accounts/{DEBTOR}")
        postgres.kill()
        status, body, headers = await site.ask(f"/api/accounts/{DEBTOR}")
        assert (status, body["error"], headers["Retry-After"]) == (503, "view_unavailable", "1")
        status, body, _ = await site.ask(f"/api/totals?at_least={P}:99&timeout=0.1")
        assert (status, body["error"]) == (503, "view_unavailable")
        await asyncio.to_thread(postgres.start)

        async def back() -> bool:
            return await site.ask(f"/api/accounts/{DEBTOR}") == (200, before | {"as_of": ANY}, ANY)

        await eventually(back, "the view answers again")
    view.close()
