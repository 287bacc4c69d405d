"""Plain functions in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from earnest.engine.process.threads import in_thread

_where = contextvars.ContextVar("where", default="nowhere")


async def test_a_function_runs_beside_the_loop_and_hands_its_result_over() -> None:
    thread = await in_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert await in_thread(lambda a, *, b: a + b, 1, b=2) == 3


async def test_what_it_raises_is_raised_here() -> None:
    def fail() -> None:
        raise KeyError("amount")

    with pytest.raises(KeyError, match="amount"):
        await in_thread(fail)


async def test_an_end_of_iteration_is_told_as_an_error() -> None:
    """A future cannot carry it."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_it_sees_the_callers_context() -> None:
    token = _where.set("here")
    try:
        assert await in_thread(_where.get) == "here"
    finally:
        _where.reset(token)


async def test_more_can_wait_for_each_other_than_any_pool_has_places() -> None:
    barrier = threading.Barrier(200)
    await asyncio.gather(*(in_thread(barrier.wait, 30) for _ in range(200)))


async def test_cancelling_stops_the_waiting_and_not_the_thread() -> None:
    started, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait()
        done.set()

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(started.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    assert await asyncio.to_thread(done.wait, 30)
