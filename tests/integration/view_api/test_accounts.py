"""An account's balances and history, and the freshness of answers."""

import random
from typing import Any

import pytest

from shared.events.postings import DEBIT, Entry, Posting
from shared.events.transfers import AccountClosed, AccountOpened
from tests.ledgers import CREDITOR, DAY, DEBTOR, P, Q, converted, transfer
from tests.views import HOUR_MS, Site, View


async def history(site: Site, path: str, after: str | None = None) -> list[dict[str, Any]]:
    """Read all pages of a history, or those after a cursor."""
    found: list[dict[str, Any]] = []
    while True:
        page = await site.get(path if after is None else f"{path}&after={after}")
        found += page["entries"]
        after = page["next"]
        if after is None:
            return found


async def test_an_account_has_its_balances_and_terms(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(AccountOpened(CREDITOR, 500))
    ledger.send(transfer("p-1", 1000, 10))
    ledger.send(converted())
    ledger.drain()
    ledger.send(AccountClosed(CREDITOR))
    site.view.take()
    account = await site.get(f"/api/accounts/{DEBTOR}")
    assert (account["partition"], account["closed"], account["overdraft_minor"]) == (P, False, None)
    assert account["balances"] == [{"currency": "EUR", "balance_minor": "-2020", "postings": 2, "last_offset": 4}]
    assert account["last_offset"] == 4
    account = await site.get(f"/api/accounts/{CREDITOR}")
    assert (account["partition"], account["closed"], account["overdraft_minor"]) == (Q, True, "500")
    assert {one["currency"]: one["balance_minor"] for one in account["balances"]} == {"EUR": "1000", "USD": "1085"}
    assert [one["partition"] for one in account["as_of"]] == [Q]
    house = await site.get(f"/api/accounts/fx:USD@{P}")
    assert (house["overdraft_minor"], house["balances"][0]["balance_minor"]) == (None, "-1085")


async def test_an_account_that_was_only_opened_has_no_balances(site: Site) -> None:
    site.view.take()
    account = await site.get(f"/api/accounts/{DEBTOR}")
    assert (account["balances"], account["last_offset"]) == ([], None)
    assert await history(site, f"/api/accounts/{DEBTOR}/entries?") == []


async def test_amounts_keep_every_digit(site: Site) -> None:
    large = 2**63 - 1
    for number in range(3):
        entries = (Entry(DEBTOR, "EUR", -large), Entry(f"in-transit@{P}", "EUR", large))
        site.view.post(P, Posting(f"p-{number}", DEBIT, DEBTOR, CREDITOR, entries, DAY))
    site.view.take()
    [balance] = (await site.get(f"/api/accounts/{DEBTOR}"))["balances"]
    assert balance["balance_minor"] == str(-3 * large)
    [total] = (await site.get("/api/totals"))["currencies"]
    assert (total["clients"]["debits_minor"], total["sum_minor"]) == (str(3 * large), "0")


async def test_an_entry_has_its_payments_fields(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(transfer("p-1", 1000, 10))
    ledger.drain()
    site.view.take()
    [entry] = (await site.get(f"/api/accounts/{DEBTOR}/entries"))["entries"]
    assert entry == {
        "at": f"ledger.postings:{P}:2",
        "line": 0,
        "timestamp_ms": HOUR_MS + 2,
        "payment_id": "p-1",
        "leg": "debit",
        "reversal": False,
        "counterparty": CREDITOR,
        "value_date": DAY,
        "reference": "rent",
        "currency": "EUR",
        "amount_minor": "-1010",
        "balance_minor": "-1010",
    }
    for account, amount, leg in ((CREDITOR, "1000", "credit"), (f"fees@{P}", "10", "debit")):
        [entry] = (await site.get(f"/api/accounts/{account}/entries"))["entries"]
        assert (entry["counterparty"], entry["amount_minor"], entry["leg"]) == (DEBTOR, amount, leg)


def mixed(view: View, payments: int) -> None:
    """Post payments in three currencies, some with two entries of one account."""
    rng = random.Random(7)
    for number in range(payments):
        currency = rng.choice(["EUR", "USD", "CHF"])
        parts = [rng.randrange(1, 100) for _ in range(rng.randrange(1, 3))]
        lines = [Entry(DEBTOR, currency, -part) for part in parts]
        entries = (*lines, Entry(f"in-transit@{P}", currency, sum(parts)))
        view.post(P, Posting(f"p-{number}", DEBIT, DEBTOR, CREDITOR, entries, DAY))


@pytest.mark.parametrize("limit", [1, 7, 200])
@pytest.mark.parametrize("currency", ["", "&currency=USD"])
async def test_pages_give_the_whole_history_in_either_order(site: Site, limit: int, currency: str) -> None:
    mixed(site.view, 30)
    site.view.take()
    path = f"/api/accounts/{DEBTOR}/entries?limit={limit}{currency}"
    oldest = await history(site, f"{path}&order=oldest")
    places = [(int(entry["at"].rpartition(":")[2]), entry["line"]) for entry in oldest]
    assert places == sorted(set(places))
    assert {entry["currency"] for entry in oldest} == ({"USD"} if currency else {"EUR", "USD", "CHF"})
    balances = {"EUR": 0, "USD": 0, "CHF": 0}
    for entry in oldest:
        balances[entry["currency"]] += int(entry["amount_minor"])
        assert entry["balance_minor"] == str(balances[entry["currency"]])
    account = await site.get(f"/api/accounts/{DEBTOR}")
    shown = {one["currency"]: one["balance_minor"] for one in account["balances"]}
    assert all(shown[name] == str(balances[name]) for name in {entry["currency"] for entry in oldest})
    assert await history(site, path) == oldest[::-1]


async def test_a_cursor_stays_valid_while_entries_arrive(site: Site) -> None:
    mixed(site.view, 10)
    site.view.take()
    path = f"/api/accounts/{DEBTOR}/entries?limit=4"
    before = await history(site, f"{path}&order=oldest")
    newest, oldest = await site.get(path), await site.get(f"{path}&order=oldest")
    mixed(site.view, 10)
    site.view.take()
    after = await history(site, f"{path}&order=oldest")
    assert after[: len(before)] == before
    following = await history(site, path, newest["next"])
    assert newest["entries"] + following == before[::-1]
    following = await history(site, f"{path}&order=oldest", oldest["next"])
    assert oldest["entries"] + following == after


async def test_an_answer_has_its_freshness(site: Site) -> None:
    view = site.view
    view.ledger.send(transfer())
    view.take()
    view.ledger.send(transfer("p-2"))
    [position] = (await site.get(f"/api/accounts/{DEBTOR}"))["as_of"]
    offsets = {"partition": P, "next_offset": 4, "last_stable_offset": 6, "offsets_behind": 2}
    took_s = position["asked_s"]
    assert 0 <= took_s < 10
    assert position == {**offsets, "seconds_behind": pytest.approx(2 + took_s), "asked_s": took_s}
    freshness = await site.get("/api/freshness")
    assert (freshness["caught_up"], freshness["offsets_behind"]) == (False, 2)
    assert 2 <= freshness["seconds_behind"] < 12
    assert freshness["as_of"][P].items() >= offsets.items()
    view.knows_ends = False
    freshness = await site.get("/api/freshness")
    assert (freshness["caught_up"], freshness["offsets_behind"], freshness["seconds_behind"]) == (None, None, None)
    assert [one["next_offset"] for one in freshness["as_of"]][P] == 4
    view.knows_ends = True
    view.take()
    freshness = await site.get("/api/freshness")
    assert (freshness["caught_up"], freshness["offsets_behind"]) == (True, 0)
    assert 0 <= freshness["seconds_behind"] < 10
