"""What the page shows of real faults: in time, in words, and until it is over."""

import asyncio
from collections.abc import Callable

import pytest
from playwright.async_api import Browser, expect

from deploy.checkers.verdict import Verdict
from tests.chromium import visiting
from tests.harness import wait_until
from tests.page_site import Site
from tests.payments import payments
from tests.proof import send_raw

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]

SHOWN_S = 2.0
RECOVERED_S = 30.0


async def settled(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for what has to be asked for in a thread: the browser goes on meanwhile."""
    await asyncio.to_thread(wait_until, condition, what, deadline_s)


@pytest.mark.parametrize("name", ["ingest", "ledger", "outbox"])
async def test_a_service_that_is_killed_shows_in_time_and_its_recovery_too(
    site: Site, browser: Browser, verdict: Verdict, name: str
) -> None:
    async with visiting(browser, site.origin) as visit:
        await visit.state(name, "ready", 5)
        site.stack.services[name].kill()
        await visit.state(name, "silent", SHOWN_S)
        assert "no answer for" in await visit.text(f'[data-service="{name}"] .state')
        await settled(lambda: site.ready(name), f"{name} ready", RECOVERED_S)
        await visit.state(name, "ready", SHOWN_S)
        await expect(visit.page.locator("#news")).to_contain_text(f"{name} is ready again, after")
        counted = {"ingest": ("ingest", "deduplicated"), "ledger": ("ledger", "refused"), "outbox": ("outbox", "sent")}
        assert (await visit.figure(*counted[name])).startswith("\u2265 "), "what it counted last may be lost"


async def test_a_service_that_was_stopped_shows_in_time_and_its_going_on_too(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async with visiting(browser, site.origin) as visit:
        await visit.state("transform", "ready", 5)
        transform = site.stack.services["transform"]
        transform.pause()
        try:
            await visit.state("transform", "silent", SHOWN_S)
        finally:
            transform.resume()
        await settled(lambda: site.ready("transform"), "transform ready", RECOVERED_S)
        await visit.state("transform", "ready", SHOWN_S)


async def test_while_a_service_is_away_its_lag_is_told_by_its_group(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async with visiting(browser, site.origin) as visit:
        ingest = site.stack.services["ingest"]
        ingest.pause()
        try:
            await visit.state("ingest", "silent", SHOWN_S)
            await send_raw(site.brokers, payments("lagging", 50))
            lag = "document.querySelector('[data-topic=\"payments.raw\"] [data-figure=lag]').textContent"
            found = await visit.until(f"Number({lag}.replace('\u2264 ', '')) >= 50 && {lag}", 5)
            assert found.startswith("\u2264 ")
        finally:
            ingest.resume()
        await visit.until(f"{lag} === '0'", RECOVERED_S)


async def test_a_view_that_is_gone_shows_at_once_and_the_page_comes_back_by_itself(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async with visiting(browser, site.origin) as visit:
        visit.may_fail = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
        site.view.process.kill()
        await visit.page.wait_for_selector("#stream[data-state=lost]", timeout=SHOWN_S * 1000)
        assert "The view cannot be reached. Trying again. The figures are those of" in await visit.text("#lost")
        site.view.start()
        await settled(lambda: site.view.ready, "the view ready")
        await visit.page.wait_for_selector("#stream[data-state=live]", timeout=10_000)
        assert await visit.text("#lost") == ""
        site.view.process.pause()
        try:
            await visit.page.wait_for_selector("#stream[data-state=lost]", timeout=(SHOWN_S + 1) * 1000)
            assert "said nothing for" in await visit.text("#lost")
        finally:
            site.view.process.resume()
        await visit.page.wait_for_selector("#stream[data-state=live]", timeout=10_000)
