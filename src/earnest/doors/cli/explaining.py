"""`earnest runs explain`: why a run is not moving, and what would move it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from earnest.domain import ids
from earnest.doors.cli import screen

if TYPE_CHECKING:
    from earnest.domain.explanation import Explanation, Mover, Reason
    from earnest.doors.cli.opening import Desk


async def explain(desk: Desk, text: str) -> None:
    from earnest.engine.inspection import explaining
    from earnest.store.visible import Sight

    found = await explaining.explain(desk.engine, Sight(desk.scope, ids.read("run", text), None))
    if desk.as_json:
        screen.print_json(desk.shown.show_explanation(found))
    else:
        _tell(found)


def _tell(found: Explanation) -> None:
    screen.say(
        f"{ids.show('run', found.run_id)} ({screen.plain(found.kind)}) is "
        f"[bold]{found.status.value}[/] since {_time(found.since)}"
    )
    for reason in found.reasons:
        screen.say(f"\n[bold]{reason.code.value}[/]  {screen.plain(reason.detail)}")
        for line in _lines(reason):
            screen.say(f"  {line}")


def _lines(reason: Reason) -> list[str]:
    named = [f"{one.type} {screen.plain(one.id)}" for one in reason.refs]
    spans = [
        f"{word} {_time(at)}"
        for word, at in (("since", reason.since), ("until", reason.until))
        if at is not None
    ]
    return [*spans, *named, *(f"moved by {_mover(one)}" for one in reason.moved_by)]


def _mover(one: Mover) -> str:
    ways = [screen.plain(way) for way in (one.command, one.call) if way is not None]
    return f"{one.by.value}: {' or '.join(ways)}" if ways else one.by.value


def _time(at: datetime) -> str:
    return at.astimezone().isoformat(" ", "seconds")
