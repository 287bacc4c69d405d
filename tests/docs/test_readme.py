"""The README's code is run as it stands there: an effect, a run, a program, an operation alone."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

import earnest
from earnest.__main__ import Program
from earnest.domain import ids
from earnest.doors.api.application import build_api
from earnest.doors.api.serving import Serving, listen
from earnest.doors.cli.program import run
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process import binding
from earnest.engine.process.principals import ensure_principal
from earnest.engine.process.tokens import issue_token
from earnest.store import runs
from earnest.testing.simulator import Simulator
from earnest.testing.verbs import CrashAt, Drain
from tests.docs.guides import blocks_of

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def shop() -> Iterator[ModuleType]:
    """All Python of the README in one module, in the order of the page."""
    code = "\n".join(block.text for block in blocks_of(README) if block.language == "python")
    made = ModuleType("readme_shop")
    sys.modules[made.__name__] = made
    exec(compile(code, str(README), "exec"), made.__dict__)  # noqa: S102 - it is our own page
    yield made
    del sys.modules[made.__name__]


async def test_the_refund_of_the_readme_is_paid_once_with_and_without_a_run(
    shop: ModuleType,
    database_url: str,
    simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P1, P7: also when the bank drops the first answer."""
    monkeypatch.setattr(shop, "bank", httpx2.AsyncClient(base_url=simulator.url))
    before = len(simulator.truth("bank"))
    simulator.put_fault("bank", "accept_then_drop")
    async with earnest.open(shop.app, database_url=database_url, worker=True) as opened:
        run_id = await shop.app.submit(shop.refund, shop.Order(id=17), key="order-17")
        assert await shop.app.submit(shop.refund, shop.Order(id=17), key="order-17") == run_id
        bound = binding.current()
        while True:
            key = ids.read("run", run_id)
            run = await runs.find(opened.engine.database, bound.scope_id, key)
            assert run is not None
            if run.final:
                break
            await opened.engine.bells.wait("moved", opened.engine.settings.poll)
        assert run.status == "succeeded"
        assert len(simulator.truth("bank")) == before + 1
        receipt = await shop.handle(18)
        assert await shop.handle(18) == receipt
    assert len(simulator.truth("bank")) == before + 2
    await shop.bank.aclose()


@pytest.fixture
def earnest_app(shop: ModuleType) -> earnest.App:
    app: earnest.App = shop.app
    return app


async def test_the_test_of_the_readme_passes(
    shop: ModuleType,
    drain: Drain,
    crash_at: CrashAt,
    earnest_simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with httpx2.AsyncClient(base_url=earnest_simulator.url) as bank:
        monkeypatch.setattr(shop, "bank", bank)
        await shop.test_a_killed_worker_is_not_a_second_refund(drain, crash_at, earnest_simulator)


def commands() -> list[list[str]]:
    """The command lines of the README that call the program, in words."""
    return [
        shlex.split(line)
        for block in blocks_of(README)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("earnest ")
    ]


@pytest.mark.parametrize("words", commands(), ids=lambda words: "-".join(words[1:3]))
def test_a_command_of_the_readme_and_its_options_are_the_programs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [word for word in words[1:3] if word.isalpha()]
    assert run(Program(), arguments=[*command, "--help"]) == 0
    shown = capsys.readouterr().out
    for word in words[1:]:
        assert not word.startswith("--") or word in shown, (word, command)


async def test_another_program_asks_over_http_as_the_readme_does(
    shop: ModuleType,
    database_url: str,
    simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P7: however often it asks."""
    monkeypatch.setattr(shop, "bank", httpx2.AsyncClient(base_url=simulator.url))
    before = len(simulator.truth("bank"))
    async with earnest.open(shop.app, database_url=database_url, worker=True) as opened:
        await ensure_principal(opened.engine, "default", "ann", ["member"])
        token = await issue_token(opened.engine, "default", "ann")
        api = build_api(opened.engine, ready=lambda: Readiness(True))
        serving = Serving(api, listen("127.0.0.1", 0))
        answering = asyncio.create_task(serving.run())
        await serving.started.wait()
        receipts = {await shop.ask(serving.url, token) for _ in range(2)}
        serving.stop()
        await answering
    await shop.bank.aclose()
    assert len(receipts) == 1
    assert len(simulator.truth("bank")) == before + 1
