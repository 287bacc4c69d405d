"""Fixtures of the streams' tests: a worker that runs scripts, and servers with changed settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from earnest.doors.api.streams import StreamSettings
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from tests.doors.streams.stage import Scripts, Stage, issue_tokens, serving_streams

MakeStage = Callable[..., Awaitable[Stage]]

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `earnest serve` uses; how transports behave is looked at with the other too."""
    both = item.path.name == "test_slow_readers.py"
    return LOOPS if both else {"uvloop": LOOPS["uvloop"]}


@pytest.fixture
def scripts() -> Scripts:
    return Scripts()


@pytest.fixture
async def engine(make_engine: Callable[..., Engine], scripts: Scripts) -> AsyncIterator[Engine]:
    """An engine with a worker that runs scripts."""
    made = make_engine(scripts.app(), drain=timedelta(0), poll=timedelta(milliseconds=50))
    worker = Worker(made, keeper=False)
    working = asyncio.create_task(worker.run())
    await worker.ready.wait()
    yield made
    worker.stop()
    await working


@pytest.fixture
async def tokens(engine: Engine) -> dict[str, str]:
    return await issue_tokens(engine)


@pytest.fixture
async def make_stage(
    engine: Engine, scripts: Scripts, tokens: dict[str, str]
) -> AsyncIterator[MakeStage]:
    """Makes a server on the engine of this test, or on another one of the same database."""
    async with AsyncExitStack() as stack:

        async def make(on: Engine | None = None, **changed: Any) -> Stage:
            settings = StreamSettings(**changed)
            return await stack.enter_async_context(
                serving_streams(on or engine, engine, scripts, tokens, settings)
            )

        yield make


@pytest.fixture
async def stage(make_stage: MakeStage) -> Stage:
    return await make_stage()
