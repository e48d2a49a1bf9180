"""/v1: amounts as integers, problems, pages by value date, and the outcome of a command by its identity."""

import asyncio
from typing import Any

import pytest

from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.headers import Headers
from shared.events.postings import CREDIT, DEBIT, Decline, Entry, Posting
from shared.events.transfers import AccountClosed, AccountOpened, Transfer
from tests.ledgers import CREDITOR, DAY, DEBTOR, P, Q, converted, reversal, transfer
from tests.views import Site

SHOP = SubmittedBy("shop", "0123456789abcdef")


def origin(number: int) -> Headers:
    """The headers of a record made from this raw record."""
    return (("origin", b"payments.raw:0:%d" % number),)


def paid(payment_id: str, minor: int, currency: str, day: str) -> Transfer:
    """A payment from the debtor to the creditor."""
    return Transfer(payment_id, DEBTOR, CREDITOR, minor, currency, minor, currency, day, submitted_by=OPERATOR)


def leg(kind: str, payment_id: str = "p-1", value_date: str = DAY, submitted_by: SubmittedBy | None = None) -> Posting:
    """A leg of 5.00 EUR from the debtor to the creditor."""
    entries = (Entry(DEBTOR, "EUR", -500), Entry(f"in-transit@{P}", "EUR", 500))
    if kind == CREDIT:
        entries = (Entry(f"in-transit@{Q}", "EUR", -500), Entry(CREDITOR, "EUR", 500))
    return Posting(payment_id, kind, DEBTOR, CREDITOR, entries, value_date, submitted_by=submitted_by)


async def outcome(site: Site, payment_id: str, debtor: str = DEBTOR) -> Any:
    """The only outcome of this identity."""
    [found] = (await site.get(f"/v1/payments?debtor={debtor}&payment_id={payment_id}"))["payments"]
    return found


async def test_a_payment_is_posted_then_completed_and_may_be_reversed(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(converted())
    site.view.take()
    found = await outcome(site, "p-1")
    assert (found["state"], found["creditor"], found["value_date"]) == ("posted", CREDITOR, DAY)
    assert (found["amount_minor"], found["fee_minor"], found["currency"]) == (1000, 10, "EUR")
    assert (found["credit_minor"], found["credited_at"], found["rate"]) == (None, None, "1.0850")
    assert (found["at"], found["origin"]) == (f"ledger.postings:{P}:2", "payments.raw:0:7")
    ledger.drain()
    ledger.send(reversal())
    site.view.take()
    found = await outcome(site, "p-1")
    assert (found["state"], found["reversed_by"]) == ("completed", "r-1")
    assert (found["credit_minor"], found["credit_currency"]) == (1085, "USD")
    assert found["credited_at"] == f"ledger.postings:{Q}:0"
    back = await outcome(site, "r-1")
    assert (back["state"], back["reversal"], back["reverses"]) == ("posted", True, "p-1")
    assert (back["amount_minor"], back["currency"]) == (1000, "EUR")


async def test_a_decline_names_its_client_and_key(site: Site) -> None:
    site.view.post(P, Decline("p-1", DEBTOR, "not_authorised", DAY, submitted_by=SHOP), origin(1))
    site.view.take()
    found = await outcome(site, "p-1")
    assert (found["state"], found["reason"]) == ("declined", "not_authorised")
    assert (found["client"], found["key_id"]) == ("shop", "0123456789abcdef")
    assert (found["amount_minor"], found["currency"], found["creditor"]) == (None, None, None)
    [former] = (await site.get("/api/payments/p-1"))["payments"]
    assert (former["client"], former["key_id"]) == ("shop", "0123456789abcdef")


async def test_a_debit_names_its_client_and_a_former_one_nobody(site: Site) -> None:
    for number, submitted_by in enumerate((SHOP, None)):
        site.view.post(P, leg(DEBIT, f"p-{number}", submitted_by=submitted_by), origin(number))
        site.view.post(Q, leg(CREDIT, f"p-{number}"), origin(number))
    site.view.take()
    found = [await outcome(site, f"p-{number}") for number in range(2)]
    assert [(one["client"], one["key_id"]) for one in found] == [("shop", "0123456789abcdef"), (None, None)]
    assert [one["state"] for one in found] == ["completed", "completed"]


async def test_an_opening_has_an_outcome_and_the_account_an_owner(site: Site) -> None:
    opened = AccountOpened(DEBTOR, 0, "shop", 1, "open-1", value_date=DAY, submitted_by=SHOP)
    site.view.post(P, opened, origin(1))
    site.view.post(P, Decline("open-2", DEBTOR, "stale_version", DAY, opening=True, submitted_by=SHOP), origin(2))
    site.view.take()
    found = await outcome(site, "open-1")
    assert (found["state"], found["opening"], found["version"], found["client"]) == ("opened", True, 1, "shop")
    refused = await outcome(site, "open-2")
    assert (refused["state"], refused["opening"], refused["reason"]) == ("declined", True, "stale_version")
    account = await site.get(f"/v1/accounts/{DEBTOR}")
    assert (account["owner"], account["version"], account["closed"]) == ("shop", 1, False)
    [former] = (await site.get("/api/payments/open-1"))["payments"]
    assert (former["status"], former["settled"], former["events"][0]["kind"]) == ("opened", True, "opened")
    site.view.post(P, AccountClosed(DEBTOR, 2))
    site.view.take()
    account = await site.get(f"/v1/accounts/{DEBTOR}")
    assert (account["owner"], account["version"], account["closed"]) == ("shop", 2, True)


async def test_an_account_that_nobody_opened_is_the_operators(site: Site) -> None:
    site.view.ledger.send(transfer())
    site.view.ledger.drain()
    site.view.take()
    account = await site.get(f"/v1/accounts/{CREDITOR}")
    assert (account["owner"], account["version"]) == ("operator", 0)


async def test_the_first_outcome_of_an_identity_that_was_used_again_comes_first(site: Site) -> None:
    site.view.post(P, Decline("p-1", DEBTOR, "insufficient_funds", "1993-01-02"), origin(1))
    site.view.post(P, leg(DEBIT), origin(2))  # the identity had left the window of ingest
    site.view.post(Q, leg(CREDIT), origin(2))
    site.view.take()
    found = (await site.get(f"/v1/payments?debtor={DEBTOR}&payment_id=p-1"))["payments"]
    assert [one["state"] for one in found] == ["declined", "completed"]


async def test_identities_of_others_are_not_found(site: Site) -> None:
    site.view.ledger.send(transfer())
    site.view.take()
    for query in (f"debtor={DEBTOR}&payment_id=p-2", f"debtor={CREDITOR}&payment_id=p-1"):
        found = await site.get(f"/v1/payments?{query}")
        assert (found["payments"], found["next"], len(found["as_of"])) == ([], None, 6)


@pytest.mark.parametrize(("until", "expected"), [("known", "posted"), ("settled", "completed")])
async def test_a_client_may_wait_for_an_outcome(site: Site, until: str, expected: str) -> None:
    path = f"/v1/payments?debtor={DEBTOR}&payment_id=p-1&until={until}"
    asked = asyncio.create_task(site.get(f"{path}&wait=20"))
    assert (await site.get(f"{path}&wait=0.1"))["payments"] == []  # the one before has looked as well
    site.view.ledger.send(transfer())
    site.view.take()
    if until == "settled":
        site.view.ledger.drain()
        site.view.take()
    [found] = (await asked)["payments"]
    assert found["state"] == expected


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_by_value_date_give_each_outcome_once(site: Site, order: str) -> None:
    days = [f"1993-01-0{day}" for day in (3, 1, 2, 2, 5, 1)]  # not in the ledger's order
    for number, day in enumerate(days):
        site.view.post(P, leg(DEBIT, f"p-{number}", day), origin(number))
    site.view.take()
    seen: list[str] = []
    path: str | None = f"/v1/payments?debtor={DEBTOR}&order={order}&limit=2&from=1993-01-01&to=1993-01-03"
    page = await site.get(str(path))
    seen += [one["payment_id"] for one in page["payments"]]
    while page["next"] is not None:
        page = await site.get(f"{path}&after={page['next']}")
        seen += [one["payment_id"] for one in page["payments"]]
    oldest_first = ["p-1", "p-5", "p-2", "p-3", "p-0"]
    assert seen == (oldest_first if order == "oldest" else oldest_first[::-1])


async def test_pages_go_on_behind_a_declined_command_of_the_operator(site: Site) -> None:
    [declined] = site.view.ledger.send(AccountOpened(DEBTOR, 5, expected_version=9))
    assert isinstance(declined, Decline)
    assert not declined.value_date
    site.view.ledger.send(transfer("p-1"))
    site.view.take()
    path = f"/v1/payments?debtor={DEBTOR}&order=oldest&limit=1"
    page = await site.get(path)
    assert [one["state"] for one in page["payments"]] == ["declined"]
    page = await site.get(f"{path}&after={page['next']}")
    assert [one["payment_id"] for one in page["payments"]] == ["p-1"]


async def test_entries_have_dates_integers_and_cursors(site: Site) -> None:
    for minor, day in enumerate(("1993-01-02", "1993-01-01", "1993-02-01"), 100):
        site.view.ledger.send(paid(f"p-{minor - 100}", minor, "EUR", day))
    site.view.ledger.send(paid("p-9", 7, "USD", "1993-01-01"))
    site.view.take()
    path = f"/v1/accounts/{DEBTOR}/entries?from=1993-01-01&to=1993-01-31&order=oldest&limit=2"
    page = await site.get(path)
    assert [(one["payment_id"], one["amount_minor"]) for one in page["entries"]] == [("p-1", -101), ("p-9", -7)]
    page = await site.get(f"{path}&after={page['next']}")
    assert [(one["payment_id"], one["currency"]) for one in page["entries"]] == [("p-0", "EUR")]
    assert page["next"] is None
    only = await site.get(f"/v1/accounts/{DEBTOR}/entries?currency=USD")
    assert [one["balance_minor"] for one in only["entries"]] == [-7]


async def test_entries_of_the_house_are_in_the_ledgers_order(site: Site) -> None:
    for number, day in enumerate(("1993-01-02", "1993-01-01", "1993-02-01")):
        site.view.ledger.send(paid(f"p-{number}", 5, "EUR", day))
    site.view.take()
    path = f"/v1/accounts/in-transit@{P}/entries?limit=2"
    page = await site.get(path)
    assert [one["payment_id"] for one in page["entries"]] == ["p-2", "p-1"]
    page = await site.get(f"{path}&after={page['next']}")
    assert ([one["payment_id"] for one in page["entries"]], page["next"]) == (["p-0"], None)
    await site.refused(f"{path}&to=1993-01-31", 400, "parameter_invalid", "ledger's order")


async def test_the_same_figures_are_strings_below_api_and_integers_below_v1(site: Site) -> None:
    site.view.ledger.send(transfer(amount_minor=2**53 - 1))
    site.view.ledger.send(transfer("p-2", amount_minor=2**53 - 1))
    site.view.take()
    for path in (f"accounts/{DEBTOR}", "totals", "digest", "freshness"):
        former, first = await site.get(f"/api/{path}"), await site.get(f"/v1/{path}")
        assert _as_text(first, former) == former
    account = await site.get(f"/v1/accounts/{DEBTOR}")
    assert [one["balance_minor"] for one in account["balances"]] == [-(2**54 - 2)]


AGES = {"seconds_behind", "asked_s"}


def _as_text(value: Any, former: Any) -> Any:
    """The value with integers as text where the former one has text, and its ages."""
    if isinstance(value, dict):
        return {name: former[name] if name in AGES else _as_text(part, former[name]) for name, part in value.items()}
    if isinstance(value, list):
        return [_as_text(*pair) for pair in zip(value, former, strict=True)]
    return str(value) if isinstance(former, str) and type(value) is int else value


@pytest.mark.parametrize(
    ("path", "status", "error", "says"),
    [
        ("payments", 400, "parameter_invalid", ["debtor", "is missing"]),
        (f"payments?debtor={DEBTOR}&wait=1", 400, "parameter_invalid", ["payment_id"]),
        (f"payments?debtor={DEBTOR}&from=1.1.1993", 400, "parameter_invalid", ["from", "YYYY-MM-DD"]),
        (f"payments?debtor={DEBTOR}&since=1993-01-01", 400, "parameter_unknown", ["'since'", "from, to"]),
        (f"payments?debtor={DEBTOR}&after=abc", 400, "parameter_invalid", ["after", "`next`"]),
        ("payments?debtor=cash@6", 400, "account_invalid", ["@0 to @5"]),
        (f"accounts/{DEBTOR}/entries?currency=EUX", 400, "parameter_invalid", ["ISO 4217"]),
        ("accounts/nobody", 404, "not_found", ["no account"]),
        ("accounts/nobody/entries", 404, "not_found", ["no account"]),
        ("nothing", 404, "not_found", ["/v1/payments"]),
    ],
)
async def test_a_refusal_is_a_problem(site: Site, path: str, status: int, error: str, says: list[str]) -> None:
    body = await site.refused(f"/v1/{path}", status, error, *says)
    assert (body["type"], body["status"]) == (f"urn:once:{error}", status)
    assert body["title"] == error.replace("_", " ").capitalize()
    _, _, headers = await site.ask(f"/v1/{path}")
    assert headers["Content-Type"] == "application/problem+json"


async def test_a_cursor_of_another_question_is_refused(site: Site) -> None:
    for number in range(3):
        site.view.ledger.send(transfer(f"p-{number}"))
    site.view.take()
    path = f"/v1/payments?debtor={DEBTOR}&limit=1"
    after = (await site.get(path))["next"]
    assert len((await site.get(f"{path}&after={after}"))["payments"]) == 1
    for other in (f"{path}&order=oldest", f"{path}&to=1993-01-01", f"/v1/payments?debtor={CREDITOR}"):
        await site.refused(f"{other}&after={after}", 400, "parameter_invalid", "`next`")
    entries = f"/v1/accounts/{DEBTOR}/entries?after={after}"
    await site.refused(entries, 400, "parameter_invalid", "`next`")
