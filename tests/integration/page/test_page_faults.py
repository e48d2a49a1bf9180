"""What the page shows of real faults: in time, in words, and until it is over."""

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

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]

SHOWN = 4  # snapshots, two a second
LOST_BEATS = 6  # a connection that ends is noticed at once, one that only says nothing after a while
BACK_BEATS = 20  # the page tries again at growing intervals
LATE_S = 15.0
RECOVERED_S = 30.0


async def settled(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    """Wait for what has to be asked for in a thread: the browser goes on meanwhile."""
    await asyncio.to_thread(wait_until, condition, what, deadline_s)


async def test_services_that_are_killed_show_in_time_and_their_recovery_too(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    """Within four snapshots, the median of three."""
    counted = {"ingest": ("ingest", "deduplicated"), "ledger": ("ledger", "refused"), "outbox": ("outbox", "sent")}
    lost, back = [], []
    async with visiting(browser, site.origin) as visit:
        for name, figure in counted.items():
            await visit.state(name, "ready", LATE_S)
            site.stack.services[name].kill()
            lost.append(await visit.taken("snapshots", visit.state(name, "silent", LATE_S)))
            assert "no answer for" in await visit.text(f'[data-service="{name}"] .state')
            await settled(partial(site.ready, name), f"{name} ready", RECOVERED_S)
            back.append(await visit.taken("snapshots", visit.state(name, "ready", LATE_S)))
            await expect(visit.page.locator("#news")).to_contain_text(f"{name} is ready again, after")
            assert (await visit.figure(*figure)).startswith("\u2265 "), "what it counted last may be lost"
    assert statistics.median(lost) <= SHOWN, lost
    assert statistics.median(back) <= SHOWN, back


@full
async def test_services_that_were_stopped_show_in_time_and_their_going_on_too(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
    """The median of five: silence alone takes two or three snapshots."""
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


async def test_while_a_service_is_away_its_lag_is_told_by_its_group(
    site: Site, browser: Browser, verdict: Verdict
) -> None:
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
async def test_a_view_that_is_gone_shows_at_once_and_the_page_comes_back_by_itself(
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
