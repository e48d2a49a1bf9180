"""Read-your-writes with all services: post payments to the gateway and read them from the view."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from shared.events.headers import Coordinates
from tests.harness import Service, cluster
from tests.keys import AUTHORIZATION
from tests.payments import payments, with_fields

pytestmark = pytest.mark.timeout(180)

WAIT_S = 30
BACKGROUND = ("ingest", "transform", "ledger")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: the view reads all of ledger.postings."""
    with cluster(tmp_path_factory.mktemp("flow-kafka")) as running:
        yield running


@pytest.fixture
async def client(kafka: LocalKafka, tmp_path: Path) -> AsyncIterator["Client"]:
    gateway_port, view_port = free_ports(2)
    brokers = kafka.bootstrap_servers
    running = [Service(name, brokers, tmp_path) for name in BACKGROUND]
    running.append(Service("gateway", brokers, tmp_path, GATEWAY_PORT=str(gateway_port)))
    database = f"sqlite:///{tmp_path / 'view.sqlite'}"
    running.append(Service("balances", brokers, tmp_path, VIEW_DATABASE=database, VIEW_PORT=str(view_port)))
    for service in running:
        service.start()
    try:
        for service in running:
            await asyncio.to_thread(service.wait_ready)
        async with aiohttp.ClientSession() as session:
            yield Client(session, f"http://127.0.0.1:{gateway_port}", f"http://127.0.0.1:{view_port}")
    finally:
        for service in running:
            service.process.kill()


class Client:
    """Writes to the gateway and reads from the view."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, view: str) -> None:
        self._session = session
        self._gateway = gateway
        self._view = view

    async def pay(self, value: bytes) -> dict[str, Any]:
        """Post a payment and return the body of the 202."""
        headers = {"Content-Type": "application/json", **AUTHORIZATION}
        async with self._session.post(f"{self._gateway}/payments", data=value, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
            accepted: dict[str, Any] = await answer.json()
            return accepted

    async def get(self, path: str) -> dict[str, Any]:
        """Request a path from the view and return the body of the 200."""
        async with self._session.get(f"{self._view}{path}") as answer:
            assert answer.status == 200, await answer.text()
            found: dict[str, Any] = await answer.json()
            return found


async def test_a_client_reads_its_own_payments(client: Client) -> None:
    amounts = range(1, 21)
    sent = [
        with_fields(value, debtor="cash@0", creditor="576", amount_minor=amount, currency="EUR")
        for value, amount in zip(payments("flow", len(amounts)), amounts, strict=True)
    ]
    accepted = await asyncio.gather(*(client.pay(value) for value in sent))
    found = await asyncio.gather(
        *(client.get(f"/api/payments/{one['payment_id']}?wait={WAIT_S}&until=settled") for one in accepted)
    )
    credits_seen: dict[int, int] = {}
    for one, answer in zip(accepted, found, strict=True):
        [payment] = answer["payments"]
        assert payment["status"] == "completed"
        assert {event["origin"] for event in payment["events"]} == {
            str(Coordinates(one["topic"], one["partition"], one["offset"]))
        }
        credit = payment["events"][1]["at"].split(":")
        credits_seen[int(credit[1])] = max(credits_seen.get(int(credit[1]), 0), int(credit[2]))
    [(partition, offset)] = credits_seen.items()
    account = await client.get(f"/api/accounts/576?at_least={partition}:{offset}")
    [balance] = account["balances"]
    assert (balance["balance_minor"], balance["postings"]) == (str(sum(amounts)), len(amounts))
    assert balance["last_offset"] == offset
    page = await client.get("/api/accounts/576/entries?limit=200")
    assert sorted(int(entry["amount_minor"]) for entry in page["entries"]) == list(amounts)
    totals = await client.get("/api/totals")
    assert totals["conserved"] is True
    assert totals["currencies"][0]["clients"]["balance_minor"] == str(sum(amounts))
