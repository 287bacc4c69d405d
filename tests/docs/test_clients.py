"""The guide to the clients, block by block, on a server with the demo's kinds (P7, P9, P11)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, Route

from earnest import Client
from earnest.testing.simulator import Simulator
from tests.client.browser import PROGRAM, chromium
from tests.client.conftest import house
from tests.client.house import House
from tests.docs.guides import Guide, reading

__all__ = ["house"]


@pytest.fixture
def served(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """With what the guide's programs are told."""
    house.start()
    monkeypatch.setenv("SHOP_EARNEST_URL", house.url)
    monkeypatch.setenv("SHOP_EARNEST_TOKEN", house.tokens["member"])
    return house


@pytest.mark.skipif(not shutil.which(PROGRAM), reason="no Chromium: scripts/system-packages")
async def test_the_guide(served: House, simulator: Simulator, tmp_path: Path) -> None:
    with reading("clients") as guide:
        refunds = guide.module("refunds.py")
        paid = {await refunds.refund(4711) for _ in range(3)}
        assert len(paid) == 1
        assert len([one for one in simulator.truth("bank") if "4711" in str(one)]) == 1
        await says_what_went_wrong(guide, served)
        the_script_prints(guide, tmp_path)
        await watches_and_decides(guide, served)
        async with asking(served) as client:
            run = await client.submit("demo.steps", {"count": 2})
            await client.wait(run.id)
            events = [event.type async for event in client.events(run.id)]
        assert await the_page_shows(guide, served, run.id) == events


async def says_what_went_wrong(guide: Guide, served: House) -> None:
    try_refund = guide.module("careful.py").try_refund
    order = {"order_id": 4712, "amount": "20.00", "bank": "keyed"}
    assert await try_refund(order, "order-4712") == "refunded"
    other = {**order, "amount": "30.00"}
    assert await try_refund(other, "order-4712") == "this key was used for another refund"
    assert (await try_refund({}, "order-4713")).startswith("our mistake: ")


def the_script_prints(guide: Guide, folder: Path) -> None:
    guide.write(folder, "script.py")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=dict(os.environ), capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    hello, *runs = done.stdout.splitlines()
    assert hello == "hello"
    assert [line.split("_")[0] for line in runs] == ["run"]


async def watches_and_decides(guide: Guide, served: House) -> None:
    watch = guide.module("watching.py").watch
    decide = guide.module("deciding.py").approve_small_refunds
    order = {"order_id": 4714, "amount": "20.00", "bank": "keyed", "needs_approval": True}
    async with asking(served) as client, asking(served, "approver") as approver:
        run = await client.submit("demo.refund", order)
        async for event in client.events(run.id):
            if event.type == "approval.requested":
                break
        async with asking(served, "operator") as operator:
            assert await decide(approver, operator) == 1
        seen = await watch(run.id)
        assert (seen[0], seen[-1]) == ("run.submitted", "run.succeeded")
        assert await watch(run.id, "elsewhen-1") == [f"up to {len(seen)}: succeeded"]


@asynccontextmanager
async def asking(served: House, who: str = "member") -> AsyncIterator[Client]:
    async with Client(served.url, served.tokens[who]) as client:
        yield client


async def the_page_shows(guide: Guide, served: House, run_id: str) -> list[str]:
    async with chromium() as browser:
        page = await browser.new_page()
        await serve(page, guide, "page.html", "text/html")
        await serve(page, guide, "page.js", "text/javascript")
        await page.add_init_script(f"sessionStorage.setItem('token', '{served.tokens['member']}')")
        await page.goto(f"{served.url}/page.html?run={run_id}")
        await page.get_by_text("done", exact=True).wait_for(timeout=20_000)
        return await page.locator("li").all_text_contents()


async def serve(page: Page, guide: Guide, name: str, kind: str) -> None:
    async def give(route: Route) -> None:
        await route.fulfill(body=guide.text(name), content_type=f"{kind}; charset=utf-8")

    await page.route(f"**/{name}*", give)
