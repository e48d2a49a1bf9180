"""The pages of drills in a browser: readable at any width and in both schemes, with nothing from elsewhere."""

from pathlib import Path

import pytest

from deploy.drills.drill import Anomaly, Verdict
from deploy.drills.report import write
from tests.chromium import RULES, Scheme, chromium
from tests.tiers import mostly_full
from tests.unit.test_drill_report import result, steps

WIDE, NARROW = (1280, 900), (320, 800)


@pytest.mark.parametrize(
    ("scheme", "size"), mostly_full([("light", NARROW), ("light", WIDE), ("dark", WIDE)], [("dark", WIDE)])
)
async def test_the_pages_are_readable(tmp_path: Path, scheme: Scheme, size: tuple[int, int]) -> None:
    results = [result(control=[Anomaly.DUPLICATE]), result(Verdict.FAILED, "no answer", row="B1", name="crash")]
    index = write(results, {"A2": steps, "B1": steps}, {}, tmp_path)
    width, height = size
    async with chromium() as browser:
        context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = await context.new_page()
        requests, wrong = list[str](), list[str]()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        await page.goto(index.as_uri())
        for link in ("A2", "B1"):
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert [fault for fault in await page.evaluate(RULES["contrast"]) if not fault.startswith("only ")] == []
            await page.get_by_role("link", name=link, exact=True).click()
            await page.get_by_role("status").wait_for()
            lines = await page.locator("figure polyline").first.bounding_box()
            assert lines is not None
            assert lines["width"] > 0
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert [fault for fault in await page.evaluate(RULES["contrast"]) if not fault.startswith("only ")] == []
            await page.get_by_role("link", name="All results").click()
        pages = [index, tmp_path / "A2.html", index, tmp_path / "B1.html", index]
        assert (requests, wrong) == ([path.as_uri() for path in pages], [])
