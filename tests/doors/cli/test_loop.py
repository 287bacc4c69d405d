"""The loop of a command ends when its work does, and by a signal; by nothing that a task says."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from earnest.doors.cli.loop import run_in_loop


async def leaves() -> None:
    sys.exit(3)


async def is_pressed() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("say", [leaves, is_pressed])
def test_a_task_that_exits_ends_no_process(say: object) -> None:
    """P5: a handler's own parallel branch; its neighbours' work goes on."""

    async def neighbour() -> str:
        await asyncio.sleep(0)
        return "done"

    async def work() -> list[object]:
        assert callable(say)
        first = await asyncio.gather(say(), neighbour(), return_exceptions=True)
        return [*first, await neighbour()]

    [raised, *others] = run_in_loop(work())
    assert isinstance(raised, SystemExit | KeyboardInterrupt)
    assert others == ["done", "done"]


def test_a_command_that_exits_itself_does() -> None:
    with pytest.raises(SystemExit) as ended:
        run_in_loop(leaves())
    assert ended.value.code == 3


def test_an_interrupt_cancels_the_work_also_after_a_task_has_exited() -> None:
    cancelled: list[bool] = []

    async def work() -> None:
        await asyncio.gather(leaves(), return_exceptions=True)
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(work())
    assert cancelled == [True]


def test_a_second_interrupt_ends_it_at_once() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                signal.raise_signal(signal.SIGINT)
                pytest.fail("the second one was not heard")

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(work())
