"""The page during real faults: it shows them in time, in words, and until they end."""

import asyncio
import statistics
from collections.abc import Callable
from functools import partial

import pytest
from playwright.async_api import Browser, expect

from deploy.checkers.verdict import Verdict
from tests.chromium import Visit, visiting
from tests.harness import wait_until
from tests.page_site import Site
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import full

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]

SHOWN = 4  # snapshots, two a second
LOST_BEATS = 6  # a closed connection is noticed at once, a silent one after a timeout
BACK_BEATS = 20  # the page retries with backoff
LATE_S = 15.0
RECOVERED_S = 30.0


async def settled(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for a condition in a thread, so that the browser continues."""
    await asyncio.to_thread(wait_until, condition, what, deadline_s)


async def test_a_killed_service_and_its_recovery_are_shown_in_time(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    """Allow four snapshots in the median of three."""
    counted = {"ingest": ("ingest", "deduplicated"), "ledger": ("ledger", "refused"), "outbox": ("outbox", "sent")}
    lost, back = [], []
    async with visiting(browser, site.origin) as visit:
        for name, figure in counted.items():
            await visit.state(name, "ready", LATE_S)
            service = site.stack.services[name]
            service.release()  # a service can start between two snapshots
            service.kill()
            lost.append(await visit.taken("snapshots", visit.state(name, "silent", LATE_S)))
            assert "no answer for" in await visit.text(f'[data-service="{name}"] .state')
            service.start()
            await settled(partial(site.ready, name), f"{name} ready", RECOVERED_S)
            back.append(await visit.taken("snapshots", visit.state(name, "ready", LATE_S)))
            await expect(visit.page.locator("#news")).to_contain_text(f"{name} is ready again, after")
            assert (await visit.figure(*figure)).startswith("\u2265 "), "the figure is not shown as a lower bound"
    assert statistics.median(lost) <= SHOWN, lost
    assert statistics.median(back) <= SHOWN, back


@full
async def test_a_paused_service_and_its_recovery_are_shown_in_time(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    """Allow four snapshots in the median of five: silence alone takes two or three."""
    lost, back = [], []
    async with visiting(browser, site.origin) as visit:
        for name in ("transform", "ingest", "ledger", "outbox", "transform"):
            await visit.state(name, "ready", LATE_S)
            service = site.stack.services[name]
            service.pause()
            try:
                lost.append(await visit.taken("snapshots", visit.state(name, "silent", LATE_S)))
            finally:
                service.resume()
            await settled(partial(site.ready, name), f"{name} ready", RECOVERED_S)
            back.append(await visit.taken("snapshots", visit.state(name, "ready", LATE_S)))
    assert statistics.median(lost) <= SHOWN, lost
    assert statistics.median(back) <= SHOWN, back


async def test_the_lag_of_a_silent_service_comes_from_its_group(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        ingest = site.stack.services["ingest"]
        ingest.pause()
        try:
            await visit.state("ingest", "silent", LATE_S)
            await send_raw(site.brokers, payments("lagging", 50))
            lag = "document.querySelector('[data-topic=\"payments.raw\"] [data-figure=lag]').textContent"
            found = await visit.until(f"Number({lag}.replace('\u2264 ', '')) >= 50 && {lag}", 5)
            assert found.startswith("\u2264 ")
        finally:
            ingest.resume()
        await visit.until(f"{lag} === '0'", RECOVERED_S)


@full
async def test_a_lost_view_is_shown_at_once_and_the_page_reconnects(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async def stream(visit: Visit, state: str) -> int:
        shown = visit.page.wait_for_selector(f"#stream[data-state={state}]", timeout=LATE_S * 1000)
        return await visit.taken("beats", shown)

    late, back = [], []
    async with visiting(browser, site.origin) as visit:
        visit.may_fail = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
        site.view.process.kill()
        late.append(await stream(visit, "lost"))
        assert "The view cannot be reached. Trying again. The figures are those of" in await visit.text("#lost")
        site.view.start()
        await settled(lambda: site.view.ready, "the view ready")
        back.append(await stream(visit, "live"))
        assert await visit.text("#lost") == ""
        for _ in range(4):
            site.view.process.pause()
            try:
                late.append(await stream(visit, "lost"))
                assert "said nothing for" in await visit.text("#lost")
            finally:
                site.view.process.resume()
            back.append(await stream(visit, "live"))
    assert statistics.median(late) <= LOST_BEATS, late
    assert max(back) <= BACK_BEATS, back


async def test_a_page_that_is_shown_again_says_that_the_view_cannot_be_reached(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    async with visiting(browser, site.origin) as visit:
        await visit.page.wait_for_selector("#stream[data-state=live]")
        site.view.process.pause()
        try:
            for hidden, state in (("true", "paused"), ("false", "lost")):
                await visit.page.evaluate(
                    f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}});"
                    "document.dispatchEvent(new Event('visibilitychange'))"
                )
                await visit.page.wait_for_selector(f"#stream[data-state={state}]", timeout=LATE_S * 1000)
            assert "The view cannot be reached. Trying again. The figures are those of" in await visit.text("#lost")
        finally:
            site.view.process.resume()
        await visit.page.wait_for_selector("#stream[data-state=live]", timeout=LATE_S * 1000)
