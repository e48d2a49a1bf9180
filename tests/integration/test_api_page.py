"""The client of docs/api.md against all services: a gateway that is killed under it books each payment once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from shared.events.clients import Scope
from shared.http.keys import key_of
from tests.api_page import page_client
from tests.harness import Service, cluster
from tests.keys import KEY, KEYS
from tests.proof import assert_exactly_once, verdict
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(240)]

SHOP = "once_the-key-of-the-shop"
SCOPES = frozenset({Scope.PAYMENTS_WRITE, Scope.ACCOUNTS_WRITE, Scope.READ})
PAYMENTS = 20


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: the view reads all of ledger.postings."""
    with cluster(tmp_path_factory.mktemp("page-kafka")) as running:
        yield running


@pytest.fixture
async def gateway(kafka: LocalKafka, tmp_path: Path) -> AsyncIterator[tuple[Service, str]]:
    """A gateway and its address, with all services behind it."""
    port, view_port = map(str, free_ports(2))
    brokers = kafka.bootstrap_servers
    keys = tmp_path / "keys"
    keys.write_text("\n".join(key.line for key in (*KEYS, key_of("shop", SHOP, SCOPES))))
    view = {"VIEW_PORT": view_port, "VIEW_DATABASE": f"sqlite:///{tmp_path / 'view.sqlite'}"}
    settings = {"GATEWAY_PORT": port, "GATEWAY_API_KEYS_FILE": str(keys)}
    settings["GATEWAY_VIEW_URL"] = f"http://127.0.0.1:{view_port}"
    made = Service("gateway", brokers, tmp_path, **settings)
    running = [Service(name, brokers, tmp_path) for name in ("ingest", "transform", "ledger")]
    running += [Service("balances", brokers, tmp_path, **view), made]
    for service in running:
        service.start()
    try:
        for service in running:
            await asyncio.to_thread(service.wait_ready)
        yield made, f"http://127.0.0.1:{port}"
    finally:
        for service in running:
            service.process.kill()


async def test_each_payment_is_booked_once(kafka: LocalKafka, gateway: tuple[Service, str]) -> None:
    service, url = gateway
    shop, operator = page_client(url, SHOP), page_client(url, KEY)
    payment = {"debtor": "page.shop", "creditor": "576", "amount_minor": 100, "currency": "EUR"}
    opening = {"account": payment["debtor"]}
    status, _ = await asyncio.to_thread(shop.ask, "/v1/accounts", opening, {"Idempotency-Key": "open"})
    assert status == 202
    status, opened = await asyncio.to_thread(shop.ask, "/v1/payments/open?debtor=page.shop&wait=30")
    assert (status, opened["state"], opened["version"]) == (200, "opened", 1)
    fund = {"debtor": "cash@0", "creditor": "page.shop", "amount_minor": 100 * PAYMENTS, "currency": "EUR"}
    assert (await asyncio.to_thread(operator.pay, "fund", **fund))["state"] in {"posted", "completed"}

    paying = [asyncio.create_task(asyncio.to_thread(shop.pay, f"p-{n}", **payment)) for n in range(PAYMENTS)]
    await asyncio.wait(paying, return_when=asyncio.FIRST_COMPLETED)
    service.process.kill()
    service.start()
    outcomes = await asyncio.gather(*paying)
    assert {outcome["state"] for outcome in outcomes} <= {"posted", "completed"}
    again = await asyncio.to_thread(shop.pay, "p-0", **payment)
    assert again["at"] == outcomes[0]["at"]
    assert_exactly_once(await asyncio.to_thread(verdict, kafka.bootstrap_servers))
    status, balance = await asyncio.to_thread(shop.ask, f"/v1/payments/p-{PAYMENTS}?debtor=page.shop")
    assert (status, balance["error"]) == (404, "not_found")
