"""The page's figures and lights agree with the verifier, the API and the reconciliations."""

import pytest
from playwright.async_api import Browser, expect

from deploy.checkers.verdict import Verdict
from services.balances.dashboard.observed import SERVICES
from tests.chromium import visiting
from tests.page_site import ALL, HUGE, HUGE_MINOR, REPEATS, Site, write_run

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="package")]

SETTLED_S = 20.0


def shown(value: int) -> str:
    return f"{value:,}"


async def test_the_figures_are_the_verifiers(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        for name in SERVICES:
            await visit.state(name, "ready", SETTLED_S)
        await expect(visit.page.locator("#cluster")).to_contain_text("1 of 1 brokers", timeout=SETTLED_S * 1000)
        postings = shown(verdict.postings)
        await visit.until(f'document.querySelector(\'[data-tile="posted"] .value\').textContent === "{postings}"', 10)
        assert await visit.tile("received") == shown(verdict.records_in) == shown(ALL)
        assert await visit.figure("ingest", "deduplicated") == shown(verdict.deduplicated) == shown(REPEATS)
        assert await visit.figure("ingest", "dead-letters") == shown(verdict.dead_lettered) == "2"
        assert await visit.figure("transform", "accepted") == shown(verdict.accepted)
        assert await visit.figure("balances", "postings") == postings
        assert await visit.figure("balances", "declines") == shown(verdict.declines) == "4"
        assert await visit.figure("outbox", "sent") == shown(verdict.effects_delivered)
        assert verdict.effects_delivered > 0
        assert await visit.figure("outbox", "doubt") == shown(verdict.effects_in_doubt)
        assert verdict.drift_minor == 0
        assert await visit.tile("drift") == "0.00"
        for topic in ("payments.raw", "payments.accepted", "ledger.transfers", "ledger.postings", "effects.requests"):
            assert await visit.figure(topic, "lag") == "0", topic
            assert await visit.figure(topic, "lso-lag") == "0", topic
        assert "1 of 1 brokers" in await visit.text("#cluster")


async def test_totals_and_positions_are_those_of_the_api(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        await visit.page.wait_for_selector("#totals table")
        rows = await visit.page.locator("#totals tbody tr").all_inner_texts()
        cells = {row.split("\t")[0]: row.split("\t")[1:] for row in rows}
        currencies = await visit.page.locator("#totals thead th").all_inner_texts()
        totals = {one["currency"]: one for one in site.get("/api/totals")["currencies"]}
        assert currencies[1:] == list(totals) == ["CZK", "EUR", "JPY"]
        assert cells["sum"] == ["0.00", "0.00", "0"]
        clients = [totals[currency]["clients"]["balance_minor"] for currency in totals]
        assert [text.translate(PLAIN) for text in cells["clients"]] == clients
        assert int(clients[2]) == HUGE * HUGE_MINOR > 2**53, "the sum fits in a browser's number"
        assert cells["clients"][2] == f"{HUGE * HUGE_MINOR:,}"
        positions = site.get("/api/freshness")["as_of"]
        shown_at = await visit.page.locator("#positions tbody tr").all_inner_texts()
        assert [row.split("\t")[:2] for row in shown_at] == [
            [str(one["partition"]), shown(one["next_offset"])] for one in positions
        ]


PLAIN = str.maketrans({"\u2212": "-", ",": None, ".": None})
"""Converts a displayed amount to minor units."""


async def test_the_lights_show_the_verdicts(site: Site, browser: Browser, verdict: Verdict) -> None:
    async with visiting(browser, site.origin) as visit:
        assert "CZK, EUR, JPY: the sum is 0" in await visit.light("I1", "ok", 5)
        legs = shown(verdict.postings // 2)
        assert f"{legs} debit legs, {legs} credit legs" in await visit.light("I4", "ok", SETTLED_S)
        await visit.light("I5", "ok", SETTLED_S)
        assert "9 producers" in await visit.light("I10", "ok", 5)
        assert "there was no reconciliation yet" in await visit.light("I3", "unknown", 5)
        assert await visit.tile("reconciled") == "\u2013"
        await write_run(site.brokers, 1)
        for name in ("I2", "I3", "I6", "I7", "I8", "I9", "I11", "I12"):
            await visit.light(name, "ok", 10)
        assert await visit.tile("invariants") == "12 hold"
        assert await visit.tile("reconciled") == "clean"
        await write_run(site.brokers, 2, full=False, breaks={"torn": 2})
        assert "breaks: 2 torn" in await visit.light("I7", "broken", 10)
        await visit.light("I12", "broken", 5)
        await visit.light("I6", "ok", 1)
        assert await visit.tile("reconciled") == "breaks"
        await expect(visit.page.locator("#news")).to_contain_text("I7 is broken")
        await write_run(site.brokers, 3)
        await visit.light("I7", "ok", 10)
        assert await visit.tile("invariants") == "12 hold"
