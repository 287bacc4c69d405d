"""`earnest events`: what happens to all runs of a scope, in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from earnest.doors.cli.opening import Desk
from earnest.doors.cli.options import Limit
from earnest.doors.cli.verbs import desk_command
from earnest.doors.cli.watching import PAGE, POLL, print_event

if TYPE_CHECKING:
    from earnest.store.feed import Page

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Then print what happens, until Ctrl-C.")
]


def add_to(program: typer.Typer) -> None:
    desk_command(program)(events)


async def events(desk: Desk, follow: Follow = False, limit: Limit = 50) -> None:
    """Print the newest events of all runs, oldest first; each run's are in order."""
    from earnest.engine.process.doorbells import MOVED
    from earnest.engine.streams.sequencing import Sequencer

    sequencer, after = Sequencer(desk.engine), -limit
    while True:
        await sequencer.catch_up()
        page = await _page(desk, after)
        for fed in page.fed:
            if fed.event is not None:  # or it was pruned while we came to it
                print_event(desk, fed.event, fed.position)
        full = len(page.fed) == PAGE
        after = page.fed[-1].position if full else page.bounds.head
        if not full and not follow:
            return
        if not full:
            await desk.engine.bells.wait(MOVED, POLL)


async def _page(desk: Desk, after: int) -> Page:
    """What comes after a position; after a negative one, so many of the newest."""
    from earnest.store import feed
    from earnest.store.feed import Place

    bounds = (await feed.bounds(desk.engine.database, [desk.scope]))[desk.scope]
    if after < 0:
        after = bounds.head + after
    after = max(after, bounds.minimum - 1)
    (page,) = await feed.after(desk.engine.database, [Place(desk.scope, None, after)], PAGE)
    return page
