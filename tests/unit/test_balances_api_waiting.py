"""Requests to the read side's API that wait for a client's own writes, over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, TypeVar
from unittest.mock import ANY

import pytest
from sqlalchemy import Connection, delete, update

from services.balances.api import reader
from services.balances.api.reader import LOOKS_PER_S, Snapshot
from services.balances.projection import database
from shared.eos.sources import SeenSources
from shared.events.catalogue import LEDGER_POSTINGS
from tests.harness import eventually
from tests.ledgers import DEBTOR, P, Q
from tests.views import Site, View, serving

WAITERS: Final = 64

T = TypeVar("T")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    async with serving(view) as made:
        yield made
    view.close()


@pytest.fixture
def funded(site: Site) -> Site:
    """The API after the debtor was funded and the view has read it."""
    site.view.fund()
    site.view.take()
    return site


async def waits(view: View) -> None:
    """Wait until a request waits for the view."""

    async def waiting() -> bool:
        return view.waiting > 0

    await eventually(waiting, "a request that waits")


@pytest.mark.parametrize("topic", ["", f"{LEDGER_POSTINGS}:"])
async def test_a_reader_waits_for_what_it_wrote(funded: Site, topic: str) -> None:
    offset = funded.view.book()
    path = f"/api/accounts/{DEBTOR}?at_least={topic}{P}:{offset}"
    asked = asyncio.create_task(funded.get(path))
    await waits(funded.view)
    assert not asked.done()
    funded.view.take()
    account = await asked
    assert account["last_offset"] == offset
    assert await funded.get(path) == account | {"as_of": ANY}


async def test_records_that_another_instance_read_count_as_well(funded: Site) -> None:
    offset = funded.view.book()
    funded.view.alone = False
    asked = asyncio.create_task(funded.get(f"/api/accounts/{DEBTOR}?at_least={P}:{offset}"))
    await waits(funded.view)
    funded.view.take()
    assert (await asked)["last_offset"] == offset


async def test_several_partitions_can_be_waited_for(funded: Site) -> None:
    debit = funded.view.book()
    funded.view.ledger.drain()
    credit = funded.view.end(Q) - 2
    path = f"/api/totals?at_least={P}:{debit},{Q}:{credit}"
    funded.view.take([P])
    asked = asyncio.create_task(funded.get(path))
    await waits(funded.view)
    funded.view.take([Q])
    assert {one["next_offset"] > 0 for one in (await asked)["as_of"] if one["partition"] in {P, Q}} == {True}


@pytest.mark.parametrize(
    "path", ["accounts/2378", "accounts/2378/entries", "totals", "digest", "payments/p-1", "payments/p-1?wait=1"]
)
async def test_a_wait_that_times_out_reports_the_position_of_the_view(funded: Site, path: str) -> None:
    offset = funded.view.book()
    join = "&" if "?" in path else "?"
    for timeout in ("0", "0.1"):
        body = await funded.refused(
            f"/api/{path}{join}at_least={P}:{offset}&timeout={timeout}",
            504,
            "not_reached",
            f"{P}:{offset}",
            f"offset {offset}",
        )
        assert [(one["partition"], one["next_offset"]) for one in body["as_of"]] == [(P, offset)]


def empty_tables(view: View) -> None:
    """Empty the tables; the worker's progress stays, as for a moment in a rebuild."""
    view.change(
        update(database.positions).values(next_offset=0, sources=SeenSources()),
        *(
            delete(table)
            for table in (database.events, database.entries, database.balances, database.accounts, database.totals)
        ),
    )


async def test_a_view_that_is_rebuilt_is_waited_for(funded: Site) -> None:
    offset = funded.view.book()
    funded.view.take()
    empty_tables(funded.view)
    path = f"/api/accounts/{DEBTOR}?at_least={P}:{offset}"
    await funded.refused(f"{path}&timeout=0.1", 504, "not_reached")
    funded.view.take()
    assert (await funded.get(path))["last_offset"] == offset


@pytest.mark.parametrize("path", ["totals?at_least={at}&timeout=2", "payments/p-2?wait=2"])
async def test_all_who_wait_share_a_rate_of_looks(funded: Site, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the worker reports more than the database has."""
    at = f"{P}:{funded.view.book()}"
    funded.view.take()
    empty_tables(funded.view)
    read = funded.reader.read
    looks: list[object] = []

    async def counted(question: Callable[[Connection], T]) -> Snapshot[T]:
        looks.append(question)
        return await read(question)

    monkeypatch.setattr(funded.reader, "read", counted)
    begun_s = time.monotonic()
    answers = await asyncio.gather(*(funded.ask(f"/api/{path.format(at=at)}") for _ in range(WAITERS)))
    assert {status for status, *_ in answers} <= {404, 504}
    # Each looks once before it waits, and once to describe what it did not find
    assert 3 * WAITERS < len(looks) <= LOOKS_PER_S * (time.monotonic() - begun_s) + 2 * WAITERS


async def test_a_pause_between_looks_ends_with_the_wait(funded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    at = f"{P}:{funded.view.book()}"
    funded.view.take()
    empty_tables(funded.view)
    monkeypatch.setattr(reader, "LOOKS_PER_S", 1 / 60)  # a minute between looks
    async with asyncio.timeout(30):
        await funded.refused(f"/api/totals?at_least={at}&timeout=0.1", 504, "not_reached")


async def test_waiting_requests_are_bounded(tmp_path: Path) -> None:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    view.fund()
    async with serving(view, waiters=(1, 1)) as site:
        first = asyncio.create_task(site.ask(f"/api/totals?at_least={P}:0"))
        await waits(view)
        await site.refused(f"/api/totals?at_least={P}:0", 503, "busy")
        await site.refused("/api/payments/p-1?wait=5", 503, "busy")
        assert (await site.ask("/api/totals"))[0] == 200
        view.take()
        assert (await first)[0] == 200
        assert (await site.ask(f"/api/totals?at_least={P}:0"))[0] == 200
    view.close()


async def test_a_payment_can_be_waited_for(funded: Site) -> None:
    path = "/api/payments/p-1"
    asked = asyncio.create_task(funded.get(f"{path}?wait=10"))
    settled = asyncio.create_task(funded.get(f"{path}?wait=10&until=settled"))
    await funded.refused(path, 404, "not_found")
    await funded.refused(f"{path}?wait=0.1", 404, "not_found", "though waited for 0.1 s")
    funded.view.book()
    funded.view.take()
    [payment] = (await asked)["payments"]
    assert payment["status"] == "debited"
    [payment] = (await funded.get(f"{path}?wait=0.1&until=settled"))["payments"]
    assert payment["status"] == "debited"
    assert not settled.done()
    funded.view.ledger.drain()
    funded.view.take()
    [payment] = (await settled)["payments"]
    assert payment["status"] == "completed"
