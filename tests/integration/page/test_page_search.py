"""The page's search: by keyboard, page by page, with every digit, and without a result."""

import asyncio
import json
import re

import pytest
from playwright.async_api import Browser, Route, expect

from deploy.checkers.verdict import Verdict
from services.balances.api import openapi
from tests.chromium import visiting
from tests.json_schema import Checker
from tests.page_site import BUSY, ENTRIES, HUGE, HUGE_MINOR, Site
from tests.partitions import PARTITIONS
from tests.tiers import mostly_full

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]


async def test_the_search_goes_by_keyboard_from_an_account_to_a_payments_way(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async with visiting(browser, site.origin) as visit:
        keyboard = visit.page.keyboard
        await keyboard.press("Tab")
        assert (await visit.focus())["name"] == "Skip to the search"
        await keyboard.press("Enter")
        assert (await visit.focus())["name"] == "account"
        await keyboard.type(BUSY)
        await keyboard.press("Enter")
        said = visit.page.locator("#said")
        await expect(said).to_have_text(f"Account {BUSY}: 1 balance, 25 entries shown")
        account = site.get(f"/api/accounts/{BUSY}")
        assert await visit.text("[data-balance=EUR]") == euros(account["balances"][0]["balance_minor"])
        for _ in range(10):
            await keyboard.press("Tab")
            if (await visit.focus())["name"].startswith("entry-"):
                break
        name = (await visit.focus())["name"]
        await keyboard.press("Enter")
        await expect(said).to_have_text("1 payment with this payment_id: completed")
        assert await visit.page.locator("#payment").input_value() == name
        await visit.page.wait_for_selector("[data-step]")
        steps = await visit.page.locator("[data-step]").evaluate_all("steps => steps.map((one) => one.dataset.step)")
        topics = [step.split(":")[0] for step in steps]
        # The credit leg was written with the debit posting: their timestamps decide the order
        assert topics[:3] == ["payments.raw", "payments.accepted", "ledger.transfers"]
        assert sorted(topics[3:5]) == ["ledger.postings", "ledger.transfers"]
        assert topics[5:] == ["ledger.postings"]
        events = site.get(f"/api/payments/{name}")["payments"][0]["events"]
        assert {event["at"] for event in events} < set(steps)
        assert {event["origin"] for event in events} == {steps[0]}
        Checker(openapi.document(PARTITIONS)).check(
            site.get(f"/api/payments/{name}/way"), {"$ref": "#/components/schemas/Ways"}
        )
        await visit.page.go_back()
        await expect(said).to_have_text(f"Account {BUSY}: 1 balance, 25 entries shown")


def euros(minor: str) -> str:
    return f"{int(minor) / 100:,.2f} EUR"


async def test_a_slow_search_says_nothing_after_a_newer_one(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        go_on = asyncio.Event()

        async def hold(route: Route) -> None:
            await go_on.wait()
            await route.continue_()

        await visit.page.route(re.compile("/api/accounts/huge-account"), hold)
        said = visit.page.locator("#said")
        await visit.page.evaluate("location.hash = '#account=huge-account'")
        await expect(said).to_have_text("Looking for account huge-account")
        await visit.page.evaluate(f"location.hash = '#account={BUSY}'")
        await expect(said).to_contain_text(f"Account {BUSY}: ")
        account, entries = re.compile("/api/accounts/huge-account$"), re.compile("/api/accounts/huge-account/entries")
        async with visit.page.expect_response(account), visit.page.expect_response(entries):
            go_on.set()
        await asyncio.sleep(0.5)
        await expect(said).to_contain_text(f"Account {BUSY}: ")
        assert await visit.page.locator("#found [data-balance=JPY]").count() == 0


async def test_older_entries_come_page_by_page_each_once(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin, f"#account={BUSY}") as visit:
        more = visit.page.get_by_role("button", name="Older entries")
        await expect(visit.page.locator("#said")).to_contain_text("25 entries shown")
        await more.click()
        await expect(visit.page.locator("#said")).to_contain_text("50 shown")
        await more.click()
        await expect(visit.page.locator("#said")).to_contain_text(f"{ENTRIES} shown")
        await expect(more).to_be_hidden()
        rows = await visit.page.locator(".stacks tbody tr td:nth-child(2)").all_inner_texts()
        path = f"/api/accounts/{BUSY}/entries?limit=200"
        assert rows == [entry["payment_id"] for entry in site.get(path)["entries"]]
        assert len(set(rows)) == ENTRIES


async def test_no_digit_of_a_large_amount_is_lost(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin, "#account=huge-account") as visit:
        assert await visit.text("[data-balance=JPY]") == f"{HUGE * HUGE_MINOR:,} JPY"


@pytest.mark.parametrize(
    ("fragment", "says"),
    mostly_full(
        [
            ("#account=never-opened", "no account of this name"),
            ("#payment=never-sent", "no payment of this payment_id"),
            ("#account=cash%409", "@0 to @5"),
            ("#account=%E0", "%E0 is not UTF-8"),
            ("#payment=%", "% is not UTF-8"),
            ("#account=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "no account of this name"),
        ],
        [("#payment=never-sent", "no payment of this payment_id"), ("#account=%E0", "%E0 is not UTF-8")],
    ),
)
async def test_a_search_without_a_result_says_what_to_do(
    site: Site, browser: Browser, verdict: Verdict, fragment: str, says: str
) -> None:
    async with visiting(browser, site.origin) as visit:
        visit.may_fail = ("status of 404", "status of 400")
        await visit.page.evaluate(f"location.hash = {json.dumps(fragment)}")
        await expect(visit.page.locator("#said")).to_contain_text(says)
        assert await visit.page.locator("#found > *").count() == 0


async def test_a_declined_payment_says_why(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin, "#payment=declined-1") as visit:
        await expect(visit.page.locator("#said")).to_have_text("1 payment with this payment_id: declined")
        assert "insufficient funds" in await visit.text(".payment")
