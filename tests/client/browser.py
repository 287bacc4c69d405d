"""A page in Debian's Chromium that uses the browser client, as it is served, under a strict content
policy; and what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, Page, Route, async_playwright

PROGRAM = "/usr/bin/chromium"
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'"
MARKUP = "<!doctype html><title>A reader</title><script type=module src=/page.js></script>"
SCRIPT = """
import * as client from "/static/earnest-events.js";
const told = (name) => (what) => window.tell(name, what);
const options = (more) => ({
  onEvent: told("event"), onResync: told("resync"), onEnd: told("end"), onState: told("state"),
  onError: (error) => window.tell("error", { message: error.message, status: error.status ?? 0 }),
  ...more,
});
window.followRun = (id, more) => (window.last = client.followRun("", id, options(more)));
window.followScope = (more) => (window.last = client.followScope("", options(more)));
window.ready();
"""


@dataclass
class Reader:
    """One page. `told` is what its handlers were called with, in order."""

    page: Page
    told: list[tuple[str, Any]] = field(default_factory=list)
    _grew: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, run_id: str, **options: Any) -> None:
        await self.page.evaluate("([id, more]) => { followRun(id, more) }", [run_id, options])

    async def follow_scope(self, **options: Any) -> None:
        await self.page.evaluate("(more) => { followScope(more) }", options)

    async def close_stream(self) -> None:
        await self.page.evaluate("() => last.close()")

    def of(self, name: str) -> list[Any]:
        return [what for one, what in self.told if one == name]

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.of("event")]

    async def until(self, holds: Callable[[Reader], bool], within: float = 40) -> None:
        try:
            async with asyncio.timeout(within):
                while not holds(self):
                    self._grew.clear()
                    await self._grew.wait()
        except TimeoutError:
            names = [
                (name, what.get("seq") if name == "event" else what) for name, what in self.told
            ]
            raise AssertionError(f"the page was only told {names[-40:]}") from None

    async def until_over(self) -> None:
        await self.until(lambda reader: bool(reader.of("end") or reader.of("error")))

    def tell(self, name: str, what: Any) -> None:
        self.told.append((name, what))
        self._grew.set()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Nothing but our own pages is opened, and root cannot have Chromium's sandbox.
        browser = await playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        await browser.close()


async def open_page(browser: Browser, origin: str) -> Reader:
    """A page of that origin; the script that it uses comes from the server there."""
    page = await browser.new_page()
    reader, ready = Reader(page), asyncio.Event()
    await page.expose_function("tell", reader.tell)
    await page.expose_function("ready", ready.set)
    await page.route("**/page", _giving(MARKUP, "text/html"))
    await page.route("**/page.js", _giving(SCRIPT, "text/javascript"))
    await page.goto(f"{origin}/page")
    async with asyncio.timeout(20):
        await ready.wait()
    return reader


def _giving(body: str, kind: str) -> Callable[[Route], Any]:
    async def give(route: Route) -> None:
        headers = {"Content-Security-Policy": POLICY}
        await route.fulfill(body=body, content_type=kind, headers=headers)

    return give
