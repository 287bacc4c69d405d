"""Following one run on the terminal until it ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from earnest.domain import ids
from earnest.domain.run import RunStatus
from earnest.doors.cli import screen
from earnest.doors.cli.exits import ExitCode
from earnest.doors.cli.opening import Desk

if TYPE_CHECKING:
    from earnest.domain.event import Event
    from earnest.domain.run import Run
    from earnest.domain.text import TextDelta

POLL = timedelta(milliseconds=500)
PAGE = 200


async def watch(
    desk: Desk,
    run_id: UUID,
    *,
    seconds: float | None = None,
    text: bool = False,
) -> ExitCode:
    """Prints each event once, in order, or with `text` what the run writes; and how it ended. `OK`
    only if it succeeded; `FAILED` also when it has not ended after `seconds`."""
    follow = _follow_text if text else _follow
    try:
        async with asyncio.timeout(seconds):
            run = await follow(desk, run_id)
    except TimeoutError:
        if not desk.as_json:
            screen.say("[yellow]it goes on; watching was given up[/]")
        return ExitCode.FAILED
    if not desk.as_json:
        _tell_end(run)
    return ExitCode.OK if run.status is RunStatus.SUCCEEDED else ExitCode.FAILED


async def _follow(desk: Desk, run_id: UUID) -> Run:
    from earnest.engine.process.doorbells import MOVED
    from earnest.store import facts, runs

    database, seen = desk.engine.database, 0
    while True:
        told = await facts.events(database, desk.scope, run_id, seen, PAGE)
        for event in told:
            seen = event.seq
            print_event(desk, event)
            if event.final:
                run = await runs.find(database, desk.scope, run_id)
                assert run is not None, "its final event was just read"
                return run
        if not told:
            await desk.engine.bells.wait(MOVED, POLL)


async def _follow_text(desk: Desk, run_id: UUID) -> Run:
    from earnest.domain.text import MAX_BYTES_OF_RUN
    from earnest.engine.process.doorbells import MOVED
    from earnest.store import runs, texts
    from earnest.store.visible import Sight

    database, sight, seen = desk.engine.database, Sight(desk.scope, run_id, None), 0
    while True:
        run = await runs.find(database, desk.scope, run_id)
        assert run is not None, "it was found before"
        told = await texts.visible(database, sight, seen, PAGE, MAX_BYTES_OF_RUN)
        for delta in told:
            seen = delta.sequence
            _print_text(desk, delta)
        if run.final and not told:
            if seen and not desk.as_json:
                screen.say("")
            return run
        if not told:
            await desk.engine.bells.wait(MOVED, POLL)


def _print_text(desk: Desk, delta: TextDelta) -> None:
    if desk.as_json:
        screen.print_json_line(desk.shown.show_delta(delta))
        return
    if delta.resets:
        screen.say(f"\n[dim]attempt {delta.attempt} begins anew[/]")
    screen.write(delta.content)


def print_event(desk: Desk, event: Event, position: int | None = None) -> None:
    """One line. `position`: its place among the events of all runs; then it is told of which."""
    if desk.as_json:
        place = {} if position is None else {"position": position}
        screen.print_json_line({**place, **desk.shown.show_event(event)})
        return
    at = event.created_at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    whose = "" if position is None else f"{ids.show('run', event.run_id)} "
    payload = screen.plain(screen.compact(event.payload)) if event.payload else ""
    screen.say(f"[dim]{at}[/] {whose}{event.seq:>4} {event.type:<22} [dim]{payload}[/]")
    if event.type == "run.unknown":
        screen.say("  in doubt: see `earnest operations list --state unknown`")


def _tell_end(run: Run) -> None:
    colour = "green" if run.status is RunStatus.SUCCEEDED else "red"
    told = run.error if run.output is None else run.output
    shown = "" if told is None else screen.plain(screen.compact(told))
    screen.say(f"[bold {colour}]{run.status.value}[/] {shown}")
