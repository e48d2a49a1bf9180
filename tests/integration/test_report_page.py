"""The page of a report in a browser: readable at any width and in both schemes, with the answers first."""

from pathlib import Path

import msgspec
import pytest

from spark.page import render
from spark.report import BREAKS, CLEAN, EXPLAINED, Explained, Report, breaks_of, report_of
from tests.chromium import RULES, Scheme, chromium
from tests.tiers import mostly_full
from tests.unit.test_report import KINDS, listed, manifest, report

WIDE = (1280, 900)


def of(verdict: str) -> Report:
    """A report with this verdict."""
    if verdict != EXPLAINED:
        return report(*([] if verdict == CLEAN else [listed(number) for number in range(1, 9)]))
    explained = Explained("ann", "2026-01-06T08:00:00.000Z", "the mirror lost it")
    known = [msgspec.structs.replace(listed(1), explained=explained, opened_at="2026-01-05T08:00:00.000Z")]
    return report_of(manifest(), {}, {"ledger": 2}, breaks_of([], [], KINDS, 100, explained=known), report().totals)


@pytest.mark.parametrize("size", [(320, 800), WIDE])
@pytest.mark.parametrize(
    ("verdict", "scheme"),
    mostly_full([(CLEAN, "light"), (EXPLAINED, "light"), (BREAKS, "dark")], [(BREAKS, "dark")]),
)
async def test_a_page_answers_first_and_is_readable(
    tmp_path: Path, verdict: str, scheme: Scheme, size: tuple[int, int]
) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(of(verdict)))
    width, height = size
    async with chromium() as browser:
        context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = await context.new_page()
        requests, wrong = list[str](), list[str]()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        await page.goto(file.as_uri())
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert [fault for fault in await page.evaluate(RULES["contrast"]) if not fault.startswith("only ")] == []
        assert await page.locator(f".verdict.{verdict}").is_visible()
        answers = await page.locator(".answers").bounding_box()
        assert answers is not None
        if size == WIDE:
            assert answers["y"] + answers["height"] < height
        assert (requests, wrong) == ([file.as_uri()], [])
