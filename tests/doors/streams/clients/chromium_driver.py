"""Follows streams with the `EventSource` of Debian's Chromium, each in a page of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, async_playwright

from tests.doors.streams.clients.lines import Asked, Tell, speak
from tests.doors.streams.clients.relay import PAGE

PROGRAM = "/usr/bin/chromium"
_FOLLOW = (Path(__file__).parent / "follow.mjs").read_text().partition("export default ")[2]
_OPEN = f"([url, names]) => {{ ({_FOLLOW})(new EventSource(url), names, window.tell) }}"


async def main() -> None:
    async with async_playwright() as playwright:
        # Nothing but our own pages is opened, and root cannot have Chromium's sandbox.
        browser = await playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )

        async def follow(asked: Asked, tell: Tell) -> None:
            await _follow(browser, asked, tell)

        await speak(browser.version, follow)
        await browser.close()


async def _follow(browser: Browser, asked: Asked, tell: Tell) -> None:
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(asked["url"]))
    page = await browser.new_page()
    try:
        await page.expose_function("tell", tell)
        await page.goto(origin + PAGE)
        await page.evaluate(_OPEN, [asked["url"], asked["names"]])
        await asyncio.get_running_loop().create_future()
    finally:
        await page.close()


if __name__ == "__main__":
    asyncio.run(main())
