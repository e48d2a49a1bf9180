"""The machine's own Chromium, headless, that records forbidden actions of a page."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from deploy.local.prerequisites import require_chromium
from tests.page_rules import CONTRAST, FOCUS, FORM, ROOM

READY = "#stream[data-state=live]"
FIRST_MS = 30_000
POLL_S = 0.05
BEAT_MS = 500
"""The interval of snapshots, and of the page's check for them."""

_COUNTING = f"""
window.snapshots = 0;
window.beats = 0;
setInterval(() => {{ window.beats += 1; }}, {BEAT_MS});
window.EventSource = class extends EventSource {{
  constructor(...words) {{
    super(...words);
    this.addEventListener("message", () => {{ window.snapshots += 1; }});
  }}
}};
"""

Clock = Literal["snapshots", "beats"]
Scheme = Literal["light", "dark"]
Rule = Literal["contrast", "form", "room"]
RULES: Mapping[Rule, str] = {"contrast": CONTRAST, "form": FORM, "room": ROOM}


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser without a kept profile."""
    # A sandbox needs a user namespace, which root in a container lacks; the pages are the project's own
    words = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=require_chromium(), args=words)
        try:
            yield browser
        finally:
            await browser.close()


class Visit:
    """A page in the browser.

    Attributes:
        page: Playwright's.
        wrong: errors of the console and of scripts, and requests to other origins.
    """

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.wrong: list[str] = []
        self.may_fail: tuple[str, ...] = ()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(part in message.text for part in self.may_fail):
            self.wrong.append(f"console: {message.text} ({message.location})")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self.origin}/"):
            self.wrong.append(f"request: {request.url}")

    async def text(self, selector: str) -> str:
        """The text of the only matching element."""
        return (await self.page.locator(selector).inner_text()).strip()

    async def figure(self, part: str, name: str) -> str:
        """A figure of the picture, by service or topic and name."""
        return await self.text(f':is([data-service="{part}"], [data-topic="{part}"]) [data-figure="{name}"]')

    async def tile(self, name: str) -> str:
        """The value of a tile."""
        return await self.text(f'[data-tile="{name}"] .value')

    async def until(self, expression: str, timeout_s: float) -> Any:
        """Wait until an expression is true in the page; returns its value. The page's policy forbids waiting in it.

        Raises:
            TimeoutError: not after `timeout_s` seconds.
        """
        async with asyncio.timeout(timeout_s):
            while not (value := await self.page.evaluate(expression)):
                await asyncio.sleep(POLL_S)
        return value

    async def state(self, service: str, state: str, timeout_s: float) -> None:
        """Wait until a service is shown in a state."""
        selector = f'[data-service="{service}"][data-state="{state}"]'
        await self.page.wait_for_selector(selector, timeout=timeout_s * 1000)

    async def light(self, invariant: str, standing: str, timeout_s: float) -> str:
        """Wait until a light has this standing; returns its text."""
        selector = f'[data-light="{invariant}"][data-standing="{standing}"]'
        await self.page.wait_for_selector(selector, timeout=timeout_s * 1000)
        return await self.text(selector)

    async def taken(self, clock: Clock, waited_for: Awaitable[object]) -> int:
        """Count snapshots, or ticks of the page's timer, until then: a busy machine delays both."""
        begun = await self.page.evaluate(clock)
        await waited_for
        taken: int = await self.page.evaluate(clock) - begun
        return taken

    async def faults(self, rule: Rule) -> list[str]:
        """List the violations of a rule: contrast, labels, order or width."""
        found: list[str] = await self.page.evaluate(RULES[rule])
        return found

    async def focus(self) -> dict[str, Any]:
        """The focused element, and whether its focus is visible."""
        found: dict[str, Any] = await self.page.evaluate(FOCUS)
        return found


@asynccontextmanager
async def visiting(
    browser: Browser,
    origin: str,
    fragment: str = "",
    *,
    scheme: Scheme = "light",
    size: Sequence[int] = (1280, 900),
    still: bool = True,
) -> AsyncIterator[Visit]:
    """Open the page until the context is left; then check that it did nothing forbidden.

    Args:
        browser: from `chromium`.
        origin: of the page.
        fragment: of its address.
        scheme: preferred colours.
        size: of the window, width and height.
        still: whether reduced motion is preferred.
    """
    width, height = size
    context = await browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": height},
        reduced_motion="reduce" if still else "no-preference",
        timezone_id="UTC",
        locale="en-GB",
    )
    try:
        await context.add_init_script(_COUNTING)
        visit = Visit(await context.new_page(), origin)
        await visit.page.goto(f"{origin}/{fragment}")
        await visit.page.wait_for_selector(READY, timeout=FIRST_MS)
        yield visit
        assert visit.wrong == []
    finally:
        await context.close()
