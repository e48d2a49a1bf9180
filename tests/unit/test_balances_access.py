"""Who may read the view: keys, scopes, owners, and the Host of a request."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from services.balances.__main__ import key_file_of
from services.balances.api import openapi
from services.balances.api.access import Admission
from services.balances.projection import database
from shared.events.clients import Scope, SubmittedBy
from shared.events.postings import Decline
from shared.events.transfers import AccountOpened
from shared.http.hosts import Hosts
from shared.http.keys import Keys, key_of
from shared.settings import ViewSettings
from tests.harness import eventually
from tests.ledgers import CREDITOR, DAY, DEBTOR, P, Q
from tests.views import Site, View, serving

SHOP, OTHER, STAFF, BLIND, OLD = "shop-key", "other-key", "staff-key", "blind-key", "old-key"
NOW_MS = 1_700_000_000_000
KEYS = Keys(
    [
        key_of("shop", SHOP, {Scope.READ}),
        key_of("other", OTHER, {Scope.READ, Scope.PAYMENTS_WRITE}),
        key_of("staff", STAFF, {Scope.READ, Scope.HOUSE}),
        key_of("shop", BLIND, {Scope.PAYMENTS_WRITE, Scope.HOUSE}),
        key_of("shop", OLD, {Scope.READ}, NOW_MS),
    ]
)
PATHS = [
    *(path.replace("{account}", DEBTOR).replace("{payment_id}", "p-1") for path in openapi.OPERATIONS),
    "/api/nothing",
    "/v1/nothing",
]
OF_CLIENTS = {f"/v1/accounts/{DEBTOR}", f"/v1/accounts/{DEBTOR}/entries", "/v1/payments", "/v1/freshness"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A view with an account of shop's, which has paid, and one that nobody opened."""
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    view.post(P, AccountOpened(DEBTOR, 0, "shop", 1, "open-1", value_date=DAY))
    view.post(P, Decline("p-1", DEBTOR, "not_authorised", DAY, submitted_by=SubmittedBy("other", "0" * 16)))
    view.post(Q, Decline("p-2", CREDITOR, "insufficient_funds", DAY, submitted_by=SubmittedBy("shop", "0" * 16)))
    view.take()
    admission = Admission(KEYS, Hosts(["view.example"]), lambda: NOW_MS * 1_000_000)
    async with serving(view, admission=admission) as made:
        yield made
    view.close()


async def test_a_malformed_head_is_400_and_never_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """It may hold a key."""
    caplog.set_level(logging.DEBUG)
    for line in (
        f"Authorization : Bearer {STAFF}",
        f"Authorization: Bearer {STAFF}\0",
        f"Authorization Bearer {STAFF}",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(site.origin).port)
        writer.write(f"GET /v1/totals HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
    assert STAFF not in caplog.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(text.encode()).decode()}"}


def asked(path: str) -> str:
    return f"{path}?debtor={DEBTOR}" if path == "/v1/payments" else path


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_asks_for_a_key(site: Site, path: str) -> None:
    for sent, error in (
        ({}, "key_missing"),
        (bearer("unknown"), "key_unknown"),
        (bearer(OLD), "key_expired"),
        (basic("shop:unknown"), "key_unknown"),
        ({"Authorization": "Basic %%%"}, "key_missing"),
        ({"Authorization": "Basic é"}, "key_missing"),
    ):
        status, body, headers = await site.ask(asked(path), sent=sent)
        assert (status, body["error"]) == (401, error)
        assert headers["WWW-Authenticate"] == 'Bearer realm="view"'


@pytest.mark.parametrize("path", PATHS)
async def test_a_key_without_the_scope_read_reads_nothing(site: Site, path: str) -> None:
    status, body, _ = await site.ask(asked(path), sent=bearer(BLIND))
    assert (status, body["error"]) == (403, "not_authorised")
    assert "no scope read" in body["detail"]


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_house_reads_what_is_not_of_one_client(site: Site, path: str) -> None:
    status, body, _ = await site.ask(asked(path), sent=bearer(SHOP))
    if path in OF_CLIENTS:
        assert status == 200
    else:
        assert (status, body["error"]) == (403, "not_authorised")
    status, _, _ = await site.ask(asked(path), sent=bearer(STAFF))
    assert status == (404 if path in {"/api/nothing", "/v1/nothing", "/api/payments/p-1/way"} else 200)


@pytest.mark.parametrize("path", [f"/v1/accounts/{DEBTOR}", f"/v1/accounts/{DEBTOR}/entries"])
async def test_an_account_is_shown_to_its_owner_and_the_house(site: Site, path: str) -> None:
    assert (await site.ask(path, sent=bearer(SHOP)))[0] == 200
    assert (await site.ask(path, sent=bearer(STAFF)))[0] == 200
    status, body, _ = await site.ask(path, sent=bearer(OTHER))
    assert (status, body["error"]) == (403, "not_authorised")
    unknown = path.replace(DEBTOR, "nobody-knows")
    assert (await site.ask(unknown, sent=bearer(OTHER)))[0] == 404


@pytest.mark.parametrize("path", [f"/v1/accounts/{DEBTOR}", f"/v1/accounts/{DEBTOR}/entries"])
async def test_the_owner_is_that_of_the_records_that_were_waited_for(site: Site, path: str) -> None:
    for client in ("other", "shop"):
        offset = site.view.post(P, AccountOpened(DEBTOR, 0, client, 2, f"open-{client}", value_date=DAY))
        asked = asyncio.create_task(site.ask(f"{path}?at_least={P}:{offset}&timeout=10", sent=bearer(OTHER)))
        await eventually(lambda: asyncio.sleep(0, site.view.waiting > 0), "the request waits")
        site.view.take()
        assert (await asked)[0] == (200 if client == "other" else 403)


@pytest.mark.parametrize(
    ("key", "debtor", "found"),
    [
        (SHOP, DEBTOR, {"open-1", "p-1"}),
        (STAFF, DEBTOR, {"open-1", "p-1"}),
        (OTHER, DEBTOR, {"p-1"}),  # its own attempt
        (SHOP, CREDITOR, {"p-2"}),  # nobody opened it, so it is the operator's
        (OTHER, CREDITOR, set()),
        (STAFF, CREDITOR, {"p-2"}),
    ],
)
async def test_outcomes_are_shown_to_the_owner_the_sender_and_the_house(
    site: Site, key: str, debtor: str, found: set[str]
) -> None:
    status, body, _ = await site.ask(f"/v1/payments?debtor={debtor}", sent=bearer(key))
    assert status == 200
    assert {one["payment_id"] for one in body["payments"]} == found


async def test_a_browser_sends_the_key_as_a_password(site: Site) -> None:
    assert (await site.ask("/api/totals", sent=basic(f"anyone:{STAFF}")))[0] == 200
    assert (await site.ask("/api/totals", sent=basic(f"anyone:{SHOP}")))[0] == 403


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_the_documentation_is_public(site: Site, path: str) -> None:
    assert (await site.ask(path))[0] == 200


@pytest.mark.parametrize(
    ("host", "is_known"),
    [("view.example", True), ("VIEW.example:8090", True), ("localhost:1", True), ("evil.example", False), ("", False)],
)
async def test_a_host_of_another_name_is_refused(site: Site, host: str, *, is_known: bool) -> None:
    status, body, _ = await site.ask("/v1/totals", sent={"Host": host, **bearer(STAFF)})
    assert status == (200 if is_known else 421)
    if not is_known:
        assert (body["error"], body["status"]) == ("host_unknown", 421)


async def test_replaced_keys_count_at_once(tmp_path: Path) -> None:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    admission = Admission(KEYS, Hosts([]), lambda: NOW_MS * 1_000_000)
    async with serving(view, admission=admission) as site:
        assert (await site.ask("/v1/totals", sent=bearer(STAFF)))[0] == 200
        admission.use(Keys([key_of("shop", SHOP, {Scope.READ})]))
        assert (await site.ask("/v1/totals", sent=bearer(STAFF)))[0] == 401
    view.close()


async def test_one_client_that_waits_leaves_others_room(tmp_path: Path) -> None:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    admission = Admission(KEYS, Hosts([]), lambda: NOW_MS * 1_000_000)
    path = f"/v1/payments?debtor={DEBTOR}&at_least={P}:0"

    async def is_waiting() -> bool:
        return view.waiting > 0

    async with serving(view, waiters=(2, 1), admission=admission) as site:
        first = asyncio.create_task(site.ask(path, sent=bearer(SHOP)))
        await eventually(is_waiting, "a request that waits")
        status, body, headers = await site.ask(path, sent=bearer(SHOP))
        assert (status, body["error"]) == (503, "busy")
        assert headers["Retry-After"] == "1"
        status, body, _ = await site.ask(f"{path}&timeout=0.1", sent=bearer(OTHER))
        assert (status, body["error"]) == (504, "not_reached"), "it had a place to wait"
        view.fund()
        view.take()
        assert (await first)[0] == 200
    view.close()


def test_a_view_without_keys_is_reached_by_its_machine_alone(tmp_path: Path) -> None:
    assert key_file_of(ViewSettings(bootstrap_servers="")) is None
    for host in ("::", "10.2.0.7", "view.example", ""):
        with pytest.raises(ValueError, match="ONCE_VIEW_API_KEYS_FILE is empty"):
            key_file_of(ViewSettings(bootstrap_servers="", host=host))
    path = tmp_path / "keys"
    path.write_text(next(iter(KEYS)).line)
    found = key_file_of(ViewSettings(bootstrap_servers="", host="::", api_keys_file=str(path)))
    assert found is not None
    assert len(found.keys) == 1
    with pytest.raises(ValueError, match=r"ONCE_VIEW_API_KEYS_FILE: .*gone cannot be read"):
        key_file_of(ViewSettings(bootstrap_servers="", api_keys_file=str(tmp_path / "gone")))
