"""Every set of scopes against every route and kind of account, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from services.gateway.answers import Outcome, OutcomeState
from shared.events.clients import Scope, decode_submitted_by
from shared.events.headers import SUBMITTED_BY, header
from shared.events.postings import AccountTerms
from shared.http.keys import Keys, key_of
from tests.gateway_matrix import EVERY_SCOPE_SET, KINDS, RIVAL, RULES, SHOP, expected
from tests.gateways import JSON, Site, gateway, let_in

OTHER = "once_of-another-client"
CHANGES: dict[str, dict[str, Any]] = {"": {}, "overdraft": {"overdraft_minor": 5}, "owner": {"owner": RIVAL}}


def key(scopes: frozenset[str]) -> str:
    return f"once_{'-'.join(sorted(scopes))}"


KEYS = Keys(
    [
        *(key_of(SHOP, key(scopes), frozenset(map(Scope, scopes))) for scopes in EVERY_SCOPE_SET),
        key_of(RIVAL, OTHER, frozenset(Scope)),
    ]
)


def payment(account: str) -> dict[str, object]:
    return {
        "schema_version": 2,
        "payment_id": "p-1",
        "debtor": account,
        "creditor": "576",
        "amount_minor": 1,
        "currency": "EUR",
    }


async def status_of(site: Site, route: str, account: str, headers: dict[str, str]) -> int:
    """Send the request of a route; of a batch, return the payment's own status if there is one."""
    path, _, variant = route.partition(", ")
    method, path = path.split(" ")
    body: dict[str, Any] = payment(account)
    if method == "GET":
        query = f"?debtor={account}" if path.startswith("/v1") else "?partition=0&offset=0"
        return (await site.ask("GET", f"{path}/p-1{query}", headers=headers))[0]
    if path.endswith("/accounts"):
        changes = CHANGES[variant]
        body = {"account": account, "command_id": "c-1", **changes}
    if path.endswith("/batch"):
        body = {"payments": [body]}
    status, answer, _ = await site.ask("POST", path, data=msgspec.json.encode(body), headers=JSON | headers)
    return int(answer["payments"][0]["status"]) if status == 207 else status


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with gateway(access=let_in(KEYS)) as made:
        made.owners.opened = {
            account: AccountTerms(owner, 1, closed=closed) for account, owner, closed in KINDS.values() if owner
        }
        made.view.outcomes = {
            (account, "p-1"): Outcome(
                payment_id="p-1", debtor=account, state=OutcomeState.POSTED, value_date="2026-11-26", at="-"
            )
            for account, _, _ in KINDS.values()
        }
        yield made


@pytest.mark.parametrize("scopes", EVERY_SCOPE_SET, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
async def test_each_route_answers_by_scopes_and_owners(site: Site, scopes: frozenset[str]) -> None:
    wrong = []
    headers = {"Authorization": f"Bearer {key(scopes)}"}
    for route in RULES:
        for kind, (account, _, _) in KINDS.items():
            site.owners.pending.clear()
            site.log.records.clear()
            site.log.headers.clear()
            if route == "GET /payments":
                site.log.add(msgspec.json.encode(payment(account)), account, f"{RIVAL}:")
            records = len(site.log.records)
            status = await status_of(site, route, account, headers)
            if status != expected(route, scopes, kind) or (len(site.log.records) > records) != (status == 202):
                wrong.append((route, kind, status))
            elif status == 202:
                submitted_by = decode_submitted_by(header(site.log.headers[-1], SUBMITTED_BY))
                assert submitted_by is not None
                assert (submitted_by.client, submitted_by.house) == (SHOP, "house" in scopes)
                assert submitted_by.key_id == next(iter(Keys([key_of(SHOP, key(scopes))]))).id
    assert wrong == []


@pytest.mark.parametrize("authorization", [None, "Bearer once_unknown", "Basic abc"])
async def test_every_route_needs_a_key(site: Site, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for route in RULES:
        assert await status_of(site, route, "shop-open", headers) == 401, route
    assert site.log.records == []
    for path in ("/", "/docs", "/openapi.json"):
        assert (await site.ask("GET", path, headers=headers))[0] in {200, 302}


async def test_a_refusal_by_owner_says_what_to_change_and_not_whose_it_is(site: Site) -> None:
    headers = {"Authorization": f"Bearer {key(frozenset({'payments:write'}))}"}
    status, problem, _ = await site.ask(
        "POST", "/v1/payments", data=msgspec.json.encode(payment("rival-open")), headers=JSON | headers
    )
    assert (status, problem["error"]) == (403, "not_authorised")
    assert "rival-open belongs to another client" in problem["detail"]
    assert RIVAL not in problem["detail"].replace("rival-open", "")
