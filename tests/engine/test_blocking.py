"""Callers that block: the same promises without an event loop, each process for itself (P2, P7)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

import earnest
from earnest import App, Context
from earnest.apps.demo.bank import OpaqueRefund, QueryableRefund, RefundRequest
from earnest.domain import crash_points
from earnest.domain.errors import SettingInvalid
from earnest.engine.blocking import Blocking
from earnest.engine.process import binding
from earnest.store.embedded import EmbeddedPostgres
from earnest.testing.simulator import Simulator

ASKED = RefundRequest(order_id=17, amount="20.00")


def bank_app(simulator_url: str) -> App:
    app = App("shop")
    for effect in (QueryableRefund(simulator_url), OpaqueRefund(simulator_url)):
        # Connections that are kept would be left open: the loop that they belong to has ended.
        at_once = httpx2.Limits(max_keepalive_connections=0)
        effect._client = httpx2.AsyncClient(base_url=simulator_url, limits=at_once)
        app.effect(effect)

    @app.run("echo")
    async def echo(ctx: Context, value: int) -> int:
        return value

    return app


@pytest.fixture
def shop(earnest_database_url: str, earnest_simulator: Simulator) -> Iterator[Blocking]:
    with earnest.blocking(bank_app(earnest_simulator.url)) as opened:
        yield opened


def refund(shop: Blocking, key: str = "order-17", effect: Any = OpaqueRefund) -> str:
    with shop.operation(key, effect, ASKED) as receipt:
        return str(receipt.id)


def test_it_is_done_once_and_the_same_key_gives_the_same_receipt(
    shop: Blocking, earnest_simulator: Simulator
) -> None:
    """P7."""
    assert refund(shop) == refund(shop)
    assert len(earnest_simulator.truth("bank")) == 1


def test_threads_at_once_make_one_call_and_all_get_its_receipt(
    shop: Blocking, earnest_simulator: Simulator
) -> None:
    """P7."""
    with ThreadPoolExecutor(8) as threads:
        receipts = set(threads.map(lambda _: refund(shop), range(8)))
    assert len(receipts) == len(earnest_simulator.truth("bank")) == 1


def test_what_the_async_verb_raises_is_raised_and_the_body_does_not_run(
    shop: Blocking, earnest_simulator: Simulator
) -> None:
    """P3: and the next caller asks the bank."""
    earnest_simulator.put_fault("bank", "accept_then_drop")
    with (
        pytest.raises(earnest.InDoubt),
        shop.operation("order-17", QueryableRefund, ASKED),
    ):
        pytest.fail("the body must not run")
    refund(shop, effect=QueryableRefund)
    assert len(earnest_simulator.truth("bank")) == 1


class TimeIsOver(BaseException):
    """As Celery's time limits and Ctrl-C: raised by a signal, in the middle of waiting."""


@pytest.fixture
def time_limit() -> Iterator[None]:
    """The main thread hears that its time is over while its call is on its way."""

    def raise_it(*_: object) -> None:
        raise TimeIsOver

    def reached(point: str) -> None:
        if point == "begin.after":
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_it)
    crash_points.install(reached)
    yield
    crash_points.install(None)
    signal.signal(signal.SIGUSR1, before)


def test_a_caller_that_stops_waiting_does_not_abandon_its_call(
    shop: Blocking, earnest_simulator: Simulator, time_limit: None
) -> None:
    """P3: closing waits for it, and the next caller gets its receipt."""
    with pytest.raises(TimeIsOver):
        refund(shop)
    shop.close()
    assert len(earnest_simulator.truth("bank")) == 1
    assert refund(shop)
    assert len(earnest_simulator.truth("bank")) == 1


def test_a_run_is_submitted_once_under_its_key(shop: Blocking, earnest_database_url: str) -> None:
    """P7."""
    echo = shop._app.kinds["echo"]
    assert shop.submit(echo, 1, key="one") == shop.submit(echo, 1, key="one")
    assert len(shop.submit_many(echo, [2, 3])) == 2


async def test_an_event_loop_is_not_blocked_but_told_what_to_do(shop: Blocking) -> None:
    with pytest.raises(SettingInvalid, match="this would block the event loop; in async code"):
        refund(shop)
    assert await asyncio.to_thread(refund, shop)


async def test_it_acts_through_its_own_engine_beside_an_async_program(
    shop: Blocking, earnest_simulator: Simulator
) -> None:
    """P7: scope and principal are those it was made with; nothing is bound for the others."""
    with pytest.raises(SettingInvalid, match="not open in this process"):
        binding.current()
    async with earnest.open(bank_app(earnest_simulator.url), scope="another"):
        theirs = await asyncio.to_thread(refund, shop)
        async with earnest.operation("order-17", OpaqueRefund, ASKED) as ours:
            assert ours.id != theirs


def test_what_could_not_be_opened_is_told_and_tried_again_at_the_next_use(
    earnest_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = earnest.blocking(bank_app("http://127.0.0.1:9"))
    monkeypatch.setenv("EARNEST_DATABASE_URL", "mysql://elsewhere")
    with pytest.raises(SettingInvalid, match="not the address of a PostgreSQL"):
        shop.open()
    monkeypatch.setenv("EARNEST_DATABASE_URL", earnest_database_url)
    assert shop.submit(shop._app.kinds["echo"], 1)
    shop.close()
    assert not [thread for thread in threading.enumerate() if "earnest-blocking" in thread.name]


# ---- processes ---------------------------------------------------------------------------------

FORKED = """
import json, os, sys, earnest
from tests.engine.test_blocking import bank_app, refund

shop = earnest.blocking(bank_app(sys.argv[1]))
mine = refund(shop, "before")
reading, writing = os.pipe()
if not (child := os.fork()):
    theirs = [refund(shop, "before"), refund(shop, "forked")]
    instance = str(shop._opened.bound.engine.instance.instance_id)
    shop.close()
    os.write(writing, json.dumps([theirs, instance]).encode())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
theirs, instance = json.loads(os.read(reading, 10_000))
assert theirs[0] == mine and theirs[1] == refund(shop, "forked")
assert instance != str(shop._opened.bound.engine.instance.instance_id)
assert refund(shop, "after")
"""

SENDING = """
import sys, earnest
from tests.engine.test_blocking import QueryableRefund, bank_app, refund

refund(earnest.blocking(bank_app(sys.argv[1])), effect=QueryableRefund)
"""

LEFT_OPEN = """
import earnest
from tests.engine.test_blocking import bank_app

shop = earnest.blocking(bank_app("http://127.0.0.1:9"))
print(shop.submit(shop._app.kinds["echo"], 1))
"""


def run_script(code: str, *words: str, **variables: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code,
         *words],
        env={**os.environ, **variables}, cwd=Path(__file__).parents[2],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer.stdout


def test_a_forked_process_opens_it_for_itself_and_leaves_the_others_alone(
    earnest_database_url: str, earnest_simulator: Simulator
) -> None:
    """P2, P7: as the children of Celery and of a web server that loads the app before it forks."""
    run_script(FORKED, earnest_simulator.url)
    assert len(earnest_simulator.truth("bank")) == 3


def test_what_a_killed_program_was_sending_is_doubted_at_once_by_the_next_caller(
    shop: Blocking, earnest_simulator: Simulator
) -> None:
    """P3: not when the call's time is over; the operating system knows that its process is gone."""
    earnest_simulator.put_fault("bank", "slow", delay_ms=5_000)
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDING, earnest_simulator.url], cwd=Path(__file__).parents[2]
    )
    while earnest_simulator.faults():
        assert sender.poll() is None
    sender.kill()
    sender.wait()
    began = time.monotonic()
    with pytest.raises(earnest.InDoubt):
        refund(shop, effect=QueryableRefund)
    assert time.monotonic() - began < 9, "the call itself may take ten seconds"
    earnest_simulator.wait_for_truth(1, "bank")
    refund(shop, effect=QueryableRefund)
    assert len(earnest_simulator.truth("bank")) == 1


def test_a_script_that_does_not_close_it_ends_and_stops_the_embedded_server(
    tmp_path: Path,
) -> None:
    """P23."""
    home = tmp_path / "home"
    variables = {"EARNEST_HOME": str(home), "EARNEST_DATABASE_URL": ""}
    assert "run_" in run_script(LEFT_OPEN, **variables)
    with EmbeddedPostgres(home) as started:
        assert started.how == "started"
