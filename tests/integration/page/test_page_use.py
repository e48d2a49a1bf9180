"""Accessibility of the page: in both colour schemes, at any width, by keyboard, without motion."""

import asyncio
import itertools
import json
import time

import pytest
from playwright.async_api import Browser, expect

from deploy.checkers.verdict import Verdict
from tests.chromium import Rule, Scheme, Visit, visiting
from tests.harness import wait_until
from tests.page_site import BUSY, Site, write_run
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import mostly_full

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]

PHONE = (360, 740)
DESK = (1280, 900)
RECOVERED_S = 30.0
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PLANTED: tuple[tuple[str, Rule, str], ...] = (
    ("document.querySelector('#cluster').style.color = '#999'", "contrast", 'text "'),
    ("document.querySelector('.sign').style.color = '#eee'", "contrast", "a sign"),
    ("document.querySelector('#account').style.borderColor = '#ddd'", "contrast", "the border of account"),
    ("document.querySelector('label').remove()", "form", "no label: account"),
    ("document.querySelector('h2').remove()", "form", "aria-labelledby=figures-title"),
    ("document.querySelector('#totals').removeAttribute('aria-label')", "form", "no name"),
    ("document.querySelector('#pipeline').append(document.createElement('p'))", "form", "others than items: pipeline"),
    ("document.querySelector('#account-form button').textContent = ''", "form", "no text"),
    ("document.querySelector('footer').id = 'account'", "form", "an id comes twice"),
    ("document.querySelector('h1').style.width = '4000px'", "room", "the page scrolls sideways"),
)
"""Scripts that break the page, each on top of those before it; the rule that it breaks, and what the rule reports."""


async def crowded(visit: Visit, fragment: str) -> None:
    """Show everything that fits on the page at once."""
    await visit.page.evaluate(f"location.hash = {json.dumps(fragment)}")
    await expect(visit.page.locator("#said")).to_contain_text("account" if "account" in fragment else "payment")
    await visit.page.wait_for_selector("#found > *" if "account" in fragment else "[data-step]")


@pytest.mark.parametrize(
    ("scheme", "fragment"),
    mostly_full(
        itertools.product(SCHEMES, [f"#account={BUSY}", "#payment=entry-1"]),
        {("light", f"#account={BUSY}"), ("dark", "#payment=entry-1")},
    ),
)
async def test_all_text_is_readable_and_labelled(
    site: Site, browser: Browser, verdict: Verdict, scheme: Scheme, fragment: str
) -> None:
    async with visiting(browser, site.origin, scheme=scheme) as visit:
        await crowded(visit, fragment)
        assert await visit.faults("contrast") == []
        assert await visit.faults("form") == []


@pytest.mark.parametrize("scheme", mostly_full(SCHEMES, {"dark"}))
async def test_faults_are_readable(site: Site, browser: Browser, verdict: Verdict, scheme: Scheme) -> None:
    await write_run(site.brokers, 10, breaks={"amount": 1, "missing": 3})
    outbox = site.stack.services["outbox"]
    try:
        async with visiting(browser, site.origin, scheme=scheme) as visit:
            await visit.light("I12", "broken", 10)
            outbox.pause()
            await visit.state("outbox", "silent", 10)
            await visit.page.evaluate("document.getElementById('lost').textContent = 'The view cannot be reached.'")
            assert await visit.faults("contrast") == []
            assert await visit.faults("form") == []
    finally:
        outbox.resume()
        await write_run(site.brokers, 11)
        await asyncio.to_thread(wait_until, lambda: site.ready("outbox"), "the outbox ready", RECOVERED_S)


@pytest.mark.parametrize(
    ("size", "fragment"),
    mostly_full(
        itertools.product(
            [PHONE, (320, 640), (768, 1024), DESK], [f"#account={BUSY}", "#payment=entry-1", "#account=huge-account"]
        ),
        {(PHONE, "#account=huge-account"), (DESK, "#payment=entry-1")},
    ),
)
async def test_all_content_fits_at_any_width(
    site: Site, browser: Browser, verdict: Verdict, size: tuple[int, int], fragment: str
) -> None:
    async with visiting(browser, site.origin, size=size) as visit:
        await crowded(visit, fragment)
        assert await visit.faults("room") == []


async def test_the_focus_is_always_visible(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin, f"#account={BUSY}") as visit:
        await expect(visit.page.locator("#said")).to_contain_text("25 entries shown")
        await visit.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        stops: list[str] = []
        for _ in range(100):
            await visit.page.keyboard.press("Tab")
            focus = await visit.focus()
            if focus["body"] or (stops and focus["name"] == stops[0]):
                break
            assert focus["outlined"], focus
            assert focus["seen"], focus
            stops.append(focus["name"])
        assert {"account", "payment", "Show account", "Show payment", "Older entries", "JSON API"} <= set(stops)


async def test_nothing_moves_with_reduced_motion(site: Site, browser: Browser, verdict: Verdict) -> None:
    # Read both at once: the animation is short
    moving = "document.querySelector('.flows') && [document.getAnimations().length]"
    for still in (True, False):
        async with visiting(browser, site.origin, still=still) as visit:
            await send_raw(site.brokers, payments(f"moving-{still}-{time.time_ns()}", 30))
            (found,) = await visit.until(moving, 10)
            assert (found == 0) == still


async def test_the_rules_find_planted_faults(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        await visit.page.wait_for_selector("#totals table")
        for rule in dict.fromkeys(rule for _, rule, _ in PLANTED):
            assert await visit.faults(rule) == []
        for spoil, rule, message in PLANTED:
            await visit.page.evaluate(spoil)
            found = await visit.faults(rule)
            assert any(message in fault for fault in found), (spoil, found)
